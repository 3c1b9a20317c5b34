"""``kill -9`` in every phase of a table, at chosen points and at any moment; then the tables are
equal to the source's, and what was copied before was not read again.

``WALFLOW_TEST_KILLS`` says how often a pipeline is killed at random moments (default 2),
``WALFLOW_TEST_SEED`` which moments these are, and ``WALFLOW_TEST_PASSES`` how often a table that
is copied again is killed at all of its moves (default 0; a pass is 12 kills).
"""

from __future__ import annotations

import os
import random
import time
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tests.cli.commands import Room, new_room
from tests.conftest import Database
from tests.pipeline.killing import (
    KILLED,
    MAKE,
    PUBLISH_LATE,
    TABLES,
    Killable,
    Process,
    Writers,
    in_lake,
    in_source,
)
from walflow.model import Phase
from walflow.pipeline.state.phases import FOLLOWED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

# Each process starts a JVM: on a busy machine that takes its time.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]
KILLS = int(os.environ.get("WALFLOW_TEST_KILLS", "2"))


@pytest.fixture
def room() -> Iterator[Room]:
    with new_room() as made:
        yield made


@pytest.fixture
def pipeline(database: Database, room: Room) -> Killable:
    database.execute(*MAKE)
    return Killable(database, room)


def assert_equal(spark: SparkSession, pipeline: Killable) -> None:
    assert {Phase(phase) for phase in pipeline.phases().values()} <= FOLLOWED
    for table in TABLES:
        theirs = in_source(pipeline.database, table)
        ours = in_lake(spark, pipeline.lake, table)
        missing, surplus = theirs - ours, ours - theirs
        assert (missing, surplus) == ({}, {}), table
        print(f"{table}: {ours.total()} rows, equal")


class Chain:
    """One run after the other, each killed where it was told."""

    def __init__(self, pipeline: Killable) -> None:
        self._pipeline = pipeline
        self.kills = 0

    def kill(
        self,
        failpoint: str,
        phase: str | None,
        meanwhile: Callable[[Process], None] = lambda process: None,
    ) -> None:
        """``phase``: what the store must then say of the table; None: it knows no table."""
        process = self._pipeline.until_killed(failpoint, meanwhile)
        self._pipeline.check_nothing_left()
        self.kills += 1
        table = failpoint.partition("[public.")[2].partition("]")[0]
        assert self._pipeline.phases().get(table) == phase, f"{failpoint}\n{process}"
        print(f"{failpoint}: killed after {process.seconds:.1f} s, {table or 'nothing'} is {phase}")


# tests/cli/test_run.py has a quick one.
@pytest.mark.long
def test_in_a_copy_and_in_a_batch(spark: SparkSession, pipeline: Killable) -> None:
    chain = Chain(pipeline)
    with Writers(pipeline.database, seed=1):
        chain.kill("copy.range[public.docs]@8", "DataSync")
        assert len(pipeline.finished_ranges("docs")) == 8
        chain.kill("apply.written[public.docs]", "Catchup")
        pipeline.database.execute(PUBLISH_LATE)
    pipeline.catch_up()
    assert_equal(spark, pipeline)


@pytest.mark.long
def test_in_every_phase(spark: SparkSession, pipeline: Killable) -> None:
    chain = Chain(pipeline)
    with Writers(pipeline.database, seed=1) as writers:
        chain.kill("slot.made", None)
        copied = copy_in_pieces(pipeline, chain)
        chain.kill("moved.sync_wait[public.docs]", "SyncWait")
        assert pipeline.finished_ranges("docs") == copied
        chain.kill("apply.written[public.docs]", "Catchup")
        # What the destination has got is of no use any more.
        assert not pipeline.planned_ranges("docs")
        chain.kill("moved.sync_done[public.docs]", "SyncDone")

        def publish(process: Process) -> None:
            process.wait_for_line("a table is ready", table="public.docs")
            pipeline.database.execute(PUBLISH_LATE)

        chain.kill("moved.init[public.late]", "Init", publish)
        assert pipeline.phases()["docs"] == "Ready"
        fails = "apply.write[public.accounts]=raise; moved.errored[public.accounts]"
        chain.kill(fails, "Errored")
        # The destination has a table of these already.
        pipeline.ask_for_resync("accounts")
        chain.kill("move.sync_wait[public.accounts]", "FinishedCopy")
        for _ in range(int(os.environ.get("WALFLOW_TEST_PASSES", "0"))):
            kill_at_every_move(pipeline, chain)
    pipeline.catch_up()
    print(f"killed {chain.kills} times during {writers.transactions} transactions")
    assert_equal(spark, pipeline)


def copy_in_pieces(pipeline: Killable, chain: Chain) -> dict[int, tuple[int, int]]:
    """Kill the copy of docs while it reads, and when it was brought to a newer snapshot and the
    destination has got it; no range is read again. Gives the notes of what was read."""
    chain.kill("copy.range[public.docs]@8", "DataSync")
    planned = pipeline.planned_ranges("docs")
    first = pipeline.finished_ranges("docs")
    chain.kill("move.sync_wait[public.docs]", "FinishedCopy")
    second = pipeline.finished_ranges("docs")
    counts = [len(found) for found in (first, second)]
    print(f"ranges of docs: {planned}; finished after each kill: {counts}")
    assert planned == pipeline.planned_ranges("docs")
    assert counts == [8, planned]
    # A range that is read again is noted again, in another file.
    assert first.items() < second.items()
    return second


def kill_at_every_move(pipeline: Killable, chain: Chain) -> None:
    """Once before it is stored, and once before anyone acts on it."""
    pipeline.ask_for_resync("docs")
    phases = [phase for phase in Phase if phase is not Phase.ERRORED]
    for before, after in pairwise(phases):
        chain.kill(f"move.{after.name.lower()}[public.docs]", before)
        chain.kill(f"moved.{after.name.lower()}[public.docs]", after)


@pytest.mark.long
@pytest.mark.timeout(1800 + 60 * KILLS)
def test_at_random(spark: SparkSession, pipeline: Killable) -> None:
    seed = int(os.environ.get("WALFLOW_TEST_SEED", "1"))
    print(f"WALFLOW_TEST_SEED={seed}")
    chance = random.Random(seed)
    with Writers(pipeline.database, seed) as writers:
        for number in range(KILLS):
            if number == 1:
                pipeline.database.execute(PUBLISH_LATE)
            elif number and set(pipeline.phases().values()) == {"Ready"}:
                pipeline.ask_for_resync("docs", chance.choice(TABLES))
            with pipeline.process() as process:
                # Seldom while Spark starts: nothing much happens then.
                start = "starting Spark" if chance.random() < 0.1 else "progress"
                process.wait_for_line(start)
                after = chance.uniform(0, 8)
                time.sleep(after)
                process.kill()
                assert process.wait() == KILLED, process
            pipeline.check_nothing_left()
            print(f"killed {after:.2f} s after {start!r}: {pipeline.phases()}")
        if KILLS < 2:
            pipeline.database.execute(PUBLISH_LATE)
    pipeline.catch_up()
    print(f"killed {KILLS} times during {writers.transactions} transactions")
    assert_equal(spark, pipeline)
