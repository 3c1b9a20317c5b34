"""Random transactions and changes of form, through stops, failures and crashes: each burst of them
ends with a lake that equals the source.

``WALFLOW_TEST_SEEDS=50`` tries as many seeds, from ``WALFLOW_TEST_SEED`` (1) on;
``WALFLOW_TEST_BURSTS`` and ``WALFLOW_TEST_TRANSACTIONS`` (a burst) make each of them longer.
"""

from __future__ import annotations

import json
import os
import random
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Database
from tests.lake.both_engines import BothEngines, assert_engines_agree
from tests.lake.crashing import Crash, Crashes
from tests.lake.equality import CURRENT, NOT_DELETED, TOLD_LAST, Lake, Sought, differences
from tests.lake.generating import TABLES, Generator
from tests.pipeline.running import QUICK, running, settings_for
from walflow.config import Settings
from walflow.destinations.base import Destination
from walflow.failpoints import set_failpoints
from walflow.pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1800)]

FIRST = int(os.environ.get("WALFLOW_TEST_SEED", "1"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("WALFLOW_TEST_SEEDS", "1")))
BURSTS = int(os.environ.get("WALFLOW_TEST_BURSTS", "2"))
TRANSACTIONS = int(os.environ.get("WALFLOW_TEST_TRANSACTIONS", "150"))
WAIT = 600

MODES = (
    ({"mode": "soft_delete"}, NOT_DELETED),
    ({"mode": "history"}, TOLD_LAST),
    ({"mode": "scd2"}, CURRENT),
)
"""What the table ``modal`` is, by the seed."""
FAILPOINTS = (
    *("apply.write", "apply.written", "evolve.change", "evolve.changed"),
    *("sync.data_sync", "sync.finished_copy", "moved.sync_wait", "copy.range"),
)


@pytest.mark.parametrize("seed", SEEDS)
def test_at_random(
    spark: SparkSession,
    database: Database,
    tmp_path: Path,
    lake_format: str,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    print(f"WALFLOW_TEST_SEED={seed}")
    chance = random.Random(seed)
    plan, rows = MODES[seed % len(MODES)]
    settings = settings_for(
        database,
        tmp_path,
        destination__uri=f"{lake_format}://{tmp_path}/lake",
        apply__tables=json.dumps({"public.modal": plan}),
        apply__on_rewrite=chance.choice(("resync", "trust")),
        table_error_retry_delay_ms=20,
    )
    generator = Generator(database, seed)
    generator.make()
    database.execute(f"CREATE PUBLICATION walflow FOR TABLE {', '.join(t.name for t in TABLES)}")
    lake, crashes = Lake(spark, settings), Crashes(monkeypatch)
    # Both engines write the same story, and end equal.
    both = partial(BothEngines, spark, settings) if lake_format == "iceberg" else lambda: None
    # What keeps the past keeps columns with it, a history always and others when copied again.
    keeps = None if "mode" in plan else ()
    sought = [Sought(t.name) for t in TABLES if t.name != "modal"] + [Sought("modal", rows, keeps)]
    for burst in range(BURSTS):
        happened = "it was stopped"
        if chance.random() < 0.7:
            happened = crash(settings, spark, generator, crashes, chance, both())
        else:
            generator.run(TRANSACTIONS // 2)
        point = chance.choice(FAILPOINTS)
        set_failpoints(f"{point}@{chance.choice((1, 1, 2, 5))}=raise")
        with running(settings, spark, caught_up=False, destination=both()) as pipeline:
            generator.run(TRANSACTIONS // 2)
            assert pipeline.wait_until(pipeline.source_position(), WAIT), pipeline.status()
            set_failpoints("")
            found = differences(database, lake, sought)
            assert not found, f"seed {seed}, burst {burst}: after {happened}, {point}: {found}"
            if lake_format == "iceberg":
                mirrored = [t.name for t in TABLES if t.name != "modal"]
                assert_engines_agree(lake, settings, mirrored)
    print(f"{generator.transactions} transactions, {generator.forms} changes of form")


def crash(
    settings: Settings,
    spark: SparkSession,
    generator: Generator,
    crashes: Crashes,
    chance: random.Random,
    destination: Destination | None,
) -> str:
    """Run until a crash at a random step, or until all is done; where it was."""
    with crashes.after(chance.choice((chance.randrange(12), chance.randrange(50)))):
        pipeline = Pipeline(settings, destination=destination, spark=spark, timing=QUICK)
        try:
            pipeline.start()
            generator.run(TRANSACTIONS // 2)
            position = pipeline.source_position()
            while not crashes.happened and not pipeline.wait_until(position, 0.5):
                pass
        except Crash:
            assert crashes.happened
        finally:
            # Its last consistent cut may be the step.
            with suppress(Crash):
                pipeline.shutdown()
    print("crashed:", crashes.happened)
    return crashes.happened
