"""The state machine of tables: its moves, and what is remembered of each."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import pytest

from walflow.errors import (
    ConnectionLost,
    DestinationError,
    DestinationForeign,
    IllegalMove,
    NoSelectRight,
    NothingToRollBack,
    StoreError,
    TablesSetAside,
)
from walflow.model import Lsn, Phase, TableName, TableSchema
from walflow.pipeline.state.phases import MOVES, check_move, resumed
from walflow.pipeline.state.retries import Postponed, Retries, is_of_the_source, next_pause
from walflow.pipeline.state.status import PipelineStatus
from walflow.pipeline.state.table_states import Tables, TableState
from walflow.serialization import from_dict, to_dict
from walflow.states import RetryKind, TableReplicationState, stands_at
from walflow.stores.memory import MemoryStore

NAME, OTHER = TableName("public", "t"), TableName("public", "other")
WAY = [
    Phase.INIT,
    Phase.DATA_SYNC,
    Phase.FINISHED_COPY,
    Phase.SYNC_WAIT,
    Phase.CATCHUP,
    Phase.SYNC_DONE,
    Phase.READY,
]


def new_tables(store: MemoryStore | None = None, **retries: float) -> Tables:
    settings = {"delay_seconds": 10.0, "max_attempts": 3, **retries}
    tables = Tables(
        store or MemoryStore("p"),
        Retries(settings["delay_seconds"], int(settings["max_attempts"])),
    )
    tables.add(TableState.new(TableSchema(1, NAME, (), ()), NAME))
    return tables


def go(tables: Tables, upto: Phase) -> None:
    for phase in WAY[1 : WAY.index(upto) + 1]:
        tables.move(1, phase)


def test_the_way_is_the_one_that_is_named() -> None:
    assert [phase.value for phase in WAY] == [
        "Init",
        "DataSync",
        "FinishedCopy",
        "SyncWait",
        "Catchup",
        "SyncDone",
        "Ready",
    ]
    assert set(MOVES) == set(Phase)
    for before, after in itertools.pairwise(WAY):
        check_move(NAME, before, after)


@pytest.mark.parametrize("before", list(Phase))
def test_every_table_can_fail_and_start_over_and_no_table_can_skip(before: Phase) -> None:
    check_move(NAME, before, Phase.ERRORED)
    check_move(NAME, before, Phase.INIT)
    if before is Phase.ERRORED:
        return
    place = WAY.index(before)
    for after in WAY[place + 2 :]:
        with pytest.raises(IllegalMove, match=f"from {before} to {after}"):
            check_move(NAME, before, after)


def test_an_illegal_move_changes_nothing() -> None:
    store = MemoryStore("p")
    tables = new_tables(store)
    with pytest.raises(IllegalMove):
        tables.move(1, Phase.READY)
    assert [state.phase for state in store.get_table_replication_history(1)] == [Phase.INIT]
    state = tables.get(1)
    assert state is not None
    assert state.phase is Phase.INIT


class Refusing(MemoryStore):
    """A store that is away."""

    away = False

    def update_table_replication_state(self, table: int, state: TableReplicationState) -> None:
        if self.away:
            raise StoreError("away")
        super().update_table_replication_state(table, state)


def test_a_move_that_is_not_remembered_does_not_happen() -> None:
    store = Refusing("p")
    tables = new_tables(store)
    store.away = True
    with pytest.raises(StoreError):
        tables.move(1, Phase.DATA_SYNC)
    state = tables.get(1)
    assert state is not None
    assert state.phase is Phase.INIT


@pytest.mark.parametrize(
    ("failed_in", "goes_on_in"),
    [
        (Phase.DATA_SYNC, Phase.DATA_SYNC),
        (Phase.FINISHED_COPY, Phase.FINISHED_COPY),
        (Phase.SYNC_WAIT, Phase.CATCHUP),
        (Phase.CATCHUP, Phase.CATCHUP),
        (Phase.READY, Phase.CATCHUP),
    ],
)
def test_a_retry_goes_on_where_the_table_failed(failed_in: Phase, goes_on_in: Phase) -> None:
    tables = new_tables()
    go(tables, failed_in)
    tables.update(1, position=Lsn(77))
    failed = tables.fail(1, DestinationError("no space", hint="make some"))
    assert failed.phase is Phase.ERRORED
    assert failed.error is not None
    assert (failed.error.reason, failed.error.hint) == ("no space", "make some")
    assert failed.error.phase is failed_in
    state = tables.retry(1)
    assert state.phase is goes_on_in is resumed(failed_in)
    assert state.position == Lsn(77)
    assert not state.waits_for_operator


def test_a_table_that_is_tried_again_keeps_its_error_and_its_failures_in_the_store_too() -> None:
    store = MemoryStore("p")
    tables = new_tables(store, max_attempts=1)
    go(tables, Phase.READY)
    for failures in (1, 2):
        tables.fail(1, DestinationError("no space", hint="make some"))
        tables.retry(1)
        state, stored = tables.get(1), store.get_table_replication_state(1)
        assert state is not None
        assert stored is not None
        for kept in (state, from_dict(TableReplicationState, to_dict(stored))):
            assert (kept.phase, kept.attempts) == (Phase.CATCHUP, failures)
            assert kept.error is not None
            assert (kept.error.reason, kept.error.hint) == ("no space", "make some")
            assert stands_at(kept) is Phase.CATCHUP
        # But it is at work, whatever the error says of further attempts.
        assert state.set_aside is None
        assert not state.waits_for_operator
    tables.give_up_changes(1, "not of one that is at work")
    again = tables.start_over(1)
    assert again.error is not None
    assert again.error.hint == "make some"
    assert again.attempts == 2


def test_an_error_that_names_an_odd_path_can_be_stored() -> None:
    tables = new_tables()
    failed = tables.fail(1, DestinationError("no \udcff.parquet", hint="look for \udcff"))
    back = from_dict(TableReplicationState, to_dict(failed.stored))
    assert back == failed.stored
    assert back.error is not None
    assert (back.error.reason, back.error.hint) == (r"no \udcff.parquet", r"look for \udcff")


def test_what_is_known_to_be_mended_is_forgotten() -> None:
    tables = new_tables()
    tables.fail(1, NoSelectRight("may not read"))
    state = tables.retry(1, resolved=True)
    assert (state.phase, state.error, state.attempts) == (Phase.DATA_SYNC, None, 0)


def test_the_attempts_are_timed_grow_and_end_with_the_operator() -> None:
    tables = new_tables(delay_seconds=10, max_attempts=3)
    go(tables, Phase.READY)
    for attempt in range(3):
        before = time.time()
        state = tables.fail(1, DestinationError("again"))
        after = time.time()
        assert state.error is not None
        assert state.error.retry.kind is RetryKind.TIMED
        assert state.error.retry.at is not None
        delay = 10 * 2**attempt
        assert before + delay <= state.error.retry.at <= after + 1.2 * delay
        tables.retry(1)
    state = tables.fail(1, DestinationError("again"))
    assert state.error is not None
    assert state.error.retry.kind is RetryKind.MANUAL
    assert state.waits_for_operator
    # A success makes the next failure a first one.
    tables.retry(1)
    tables.update(1, attempts=0)
    state = tables.fail(1, DestinationError("again"))
    assert state.attempts == 1
    assert not state.waits_for_operator


def test_what_trying_again_cannot_help_waits_for_the_operator() -> None:
    tables = new_tables()
    state = tables.fail(1, DestinationForeign("not ours"))
    assert state.waits_for_operator
    assert state.error is not None
    assert state.error.retry.kind is RetryKind.MANUAL


def test_what_to_do_is_said_with_the_tables_in_their_order() -> None:
    tables = new_tables()
    for oid, hint in ((1, "Move it."), (2, "Ask its owner."), (3, "Move it.")):
        name = TableName("public", f"t{oid}")
        if oid > 1:
            tables.add(TableState.new(TableSchema(oid, name, (), ()), name))
        tables.fail(oid, DestinationForeign("not ours", hint=hint))
    states = tuple(sorted(tables.all(), key=lambda state: state.name))
    status = PipelineStatus(states, Lsn(1), Lsn(1), Lsn(1), Lsn(1), 0.0)
    with pytest.raises(TablesSetAside) as raised:
        status.check_none_set_aside()
    assert raised.value.hint.splitlines()[:-1] == [
        "public.t, public.t3: Move it.",
        "public.t2: Ask its owner.",
    ]


def test_an_attempt_that_is_far_away_is_not_waited_for() -> None:
    tables = new_tables(delay_seconds=600)
    tables.add(TableState.new(TableSchema(2, OTHER, (), ()), OTHER, Phase.READY))
    tables.fail(1, DestinationError("no space", hint="make some"))
    now = time.time()
    status = PipelineStatus(tuple(tables.all()), Lsn(1), Lsn(1), Lsn(1), Lsn(1), 0.0)
    # Until the attempt is near, all that can be reached has been reached.
    assert not status.reached(Lsn(1))
    assert not status.under_way(now + 30)
    assert status.reached(Lsn(1), now + 30)
    with pytest.raises(TablesSetAside, match=r"public\.t: no space") as raised:
        status.check_none_set_aside(now + 30)
    assert "public.t: make some" in raised.value.hint
    assert "public.t: the next attempt comes by itself" in raised.value.hint
    assert "walflow retry --all-errored" in raised.value.hint
    # Then it is waited for, as is one that is being tried.
    assert not status.reached(Lsn(1), now + 800)
    status.check_none_set_aside(now + 800)
    tables.retry(1)
    status = replace(status, tables=tuple(tables.all()))
    assert not status.reached(Lsn(1), now + 30)


def test_trouble_of_the_source_is_no_tables_fault() -> None:
    assert is_of_the_source(ConnectionLost("gone"))
    assert not is_of_the_source(DestinationError("gone"))
    assert not is_of_the_source(ValueError("gone"))


def test_a_copy_that_came_on_is_interrupted_for_the_first_time_again() -> None:
    def interrupted_at(*rows: int) -> list[float]:
        before, pauses = None, []
        for count in rows:
            pauses.append(next_pause(before, count))
            before = Postponed(until=0.0, pause=pauses[-1], rows=count)
        return pauses

    assert interrupted_at(0, 0, 0, 0) == [0.5, 1, 2, 4]
    assert interrupted_at(10, 10, 10, 500, 500) == [0.5, 1, 2, 0.5, 1]
    # One that had to start over has not come on.
    assert interrupted_at(500, 10, 10) == [0.5, 1, 2]
    assert interrupted_at(*[7] * 20)[-1] == 30


def test_rolling_back_goes_through_the_history() -> None:
    store = MemoryStore("p")
    tables = new_tables(store)
    go(tables, Phase.FINISHED_COPY)
    tables.fail(1, DestinationError("no"))
    assert tables.roll_back(1).phase is Phase.FINISHED_COPY
    assert tables.roll_back(1).phase is Phase.DATA_SYNC
    assert tables.roll_back(1).phase is Phase.INIT
    with pytest.raises(NothingToRollBack):
        tables.roll_back(1)


def test_progress_is_saved_without_a_history() -> None:
    store = MemoryStore("p")
    tables = new_tables(store)
    go(tables, Phase.READY)
    before = len(store.get_table_replication_history(1))
    for position in range(5):
        tables.update(1, position=Lsn(position), changes_applied=position)
        tables.save()
    history = store.get_table_replication_history(1)
    assert len(history) == before
    assert (history[-1].position, history[-1].changes_applied) == (Lsn(4), 4)


def test_a_table_that_left_is_forgotten() -> None:
    store = MemoryStore("p")
    tables = new_tables(store)
    tables.forget(1)
    tables.forget(1)
    assert tables.update(1, rows_copied=5) is None
    tables.save()
    assert store.get_table_replication_states() == {}
    assert store.get_table_mapping(1) is None


def test_positions_of_another_history_are_forgotten_also_of_tables_not_looked_at_yet() -> None:
    store = MemoryStore("p")
    tables = new_tables(store)
    go(tables, Phase.READY)
    tables.update(1, position=Lsn(77))
    other = TableReplicationState(TableName("public", "u"), Phase.READY, 1.0, Lsn(88))
    store.update_table_replication_state(2, other)
    tables.forget_positions()
    tables.save()
    stored = store.get_table_replication_states()
    assert {(state.phase, state.position) for state in stored.values()} == {(Phase.INIT, Lsn(0))}
    state = tables.get(1)
    assert state is not None
    assert (state.phase, state.position) == (Phase.INIT, Lsn(0))
