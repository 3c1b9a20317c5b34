"""The live view: what it shows, in which order, and that it fits."""

from __future__ import annotations

import io
import json
import time
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from walflow.cli.progress import Meter, Progress, TableProgress
from walflow.cli.view import View
from walflow.cli.watcher import Watcher
from walflow.model import Lsn, Phase, TableName, TableSchema
from walflow.pipeline.state.status import PipelineStatus
from walflow.pipeline.state.table_states import TableState
from walflow.states import RetryKind, RetryPolicy, TableError
from walflow.units import (
    human_age,
    human_bytes,
    human_count,
    human_rate,
    human_seconds,
    iso_time,
)


def table(name: str, phase: Phase, **known: object) -> TableProgress:
    values = {
        "since": 0.0,
        "rows_expected": 0,
        "rows_copied": 0,
        "changes": 0,
        "changes_per_second": 0.0,
        "lag_bytes": None,
        "lag_seconds": None,
    } | known
    return TableProgress(TableName(*name.split(".")), phase, **values)  # type: ignore[arg-type]


def failed(name: str, kind: RetryKind = RetryKind.MANUAL, **known: object) -> TableProgress:
    at = time.time() + 600 if kind is RetryKind.TIMED else None
    error = TableError(
        "DestinationError",
        "the lake is full " * 10,
        "Free some space. " * 10,
        RetryPolicy(kind, at),
        Phase.CATCHUP,
    )
    return table(name, Phase.ERRORED, error=error, **known)


def drawn(*tables: TableProgress, stage: str = "", width: int = 80, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True)
    view = View(console, "shop", "postgresql://app@db:5432/shop", "iceberg:///lake", "-f shop.yaml")
    with console.capture() as captured, view:
        view.show(stage, Progress(tables, Lsn(0x100), Lsn(0x80), 1.5))
    # The last frame, without what positions and colours it.
    plain = Console(file=io.StringIO(), width=width)
    plain.print(view._render())
    assert isinstance(plain.file, io.StringIO)
    assert captured.get()
    return plain.file.getvalue().splitlines()


def test_it_fits_into_80_columns_at_the_largest_numbers() -> None:
    lines = drawn(
        table("public.a_name_that_is_longer_than_its_column", Phase.FINISHED_COPY),
        table(
            "shop.orders",
            Phase.CATCHUP,
            rows_copied=9_999_999,
            changes=9_999_999,
            changes_per_second=123_456,
            lag_bytes=999 << 30,
            lag_seconds=99.9,
        ),
    )
    assert all(len(line.rstrip()) <= 80 for line in lines)
    assert any("9,999,999 9,999,999   123k 999 GB 99.9 s" in line for line in lines)


def test_the_copy_has_a_bar_and_never_says_100_percent_before_its_end() -> None:
    lines = drawn(
        table("a.half", Phase.DATA_SYNC, rows_expected=200, rows_copied=100, rows_per_second=4.0),
        table("b.more", Phase.DATA_SYNC, rows_expected=100, rows_copied=300, rows_per_second=9e6),
        table(
            "c.long_name_of_a_large_table",
            Phase.DATA_SYNC,
            rows_expected=12_345_678_901,
            rows_copied=9_999_999,
            rows_per_second=123_456,
        ),
        table("d.done", Phase.READY, lag_bytes=0, lag_seconds=0.0),
        stage="copying",
    )
    assert all(len(line.rstrip()) <= 80 for line in lines)
    half = next(line for line in lines if "a.half" in line)
    assert "━" in half
    assert half.split()[-6:] == ["100", "of", "200", "4", "25.0", "s"]
    assert "50%" in half
    more = next(line for line in lines if "b.more" in line)
    assert "99%" in more
    assert more.endswith("9,000k       "), "more rows than were expected: no telling how long"
    assert any("9,999,999 of 12,345.7M    123k 27.8 h" in line for line in lines)
    assert [line.split()[0] for line in lines if " lag " in line or "Ready" in line] == [
        "table",
        "d.done",
    ]
    assert any("copying …" in line for line in lines)


def names_in(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines if line.startswith(("s.", "z."))]


def test_tables_keep_their_places() -> None:
    def line_up(busy: str, failing: str) -> list[str]:
        tables = [
            failed(name, since=time.time())
            if name == failing
            else table(
                name,
                Phase.READY,
                changes=1000,
                changes_per_second=5000.0 if name == busy else 0.0,
                lag_bytes=0,
                lag_seconds=0.0,
            )
            for name in ("s.a", "s.b", "s.c", "s.d")
        ]
        return names_in(drawn(*tables, height=40))

    assert line_up("s.c", "") == line_up("s.a", "s.d") == line_up("s.d", "s.b")
    assert line_up("", "") == ["s.a", "s.b", "s.c", "s.d"]
    # Of two that fail in turn, neither jumps over the other.
    lines = drawn(failed("s.b", since=1.0), failed("s.a", since=2.0), height=40)
    assert [line.split()[1] for line in lines if line.startswith("✗")] == ["s.a", "s.b"]


def test_of_many_tables_those_that_need_a_look_are_shown() -> None:
    quiet = [
        table(f"s.t{number:02}", Phase.READY, lag_bytes=0, lag_seconds=0.0) for number in range(40)
    ]
    busy = table("z.busy", Phase.READY, changes=500, lag_bytes=9, lag_seconds=0.1)
    copying = table("z.copying", Phase.DATA_SYNC)
    lines = drawn(*quiet, busy, copying, failed("z.failed"), height=20)
    assert len(lines) <= 20
    names = names_in(lines)
    assert names[-3:] == ["z.busy", "z.copying", "z.failed"]
    assert names[:-3] == [f"s.t{number:02}" for number in range(len(names) - 3)]
    assert f"… and {43 - len(names)} more" in "\n".join(lines)


@pytest.mark.parametrize("width", [80, 120])
def test_a_table_that_was_set_aside_cannot_be_missed(width: int) -> None:
    lines = drawn(
        table("public.fine", Phase.READY, lag_bytes=5, lag_seconds=0.0),
        failed("public.timed", RetryKind.TIMED, since=2.0, attempts=2),
        failed("public.manual", RetryKind.MANUAL, since=1.0),
        failed("public.final", RetryKind.NONE, since=3.0),
        width=width,
        height=40,
    )
    assert all(len(line.rstrip()) <= width for line in lines)
    crosses = [line.split()[1] for line in lines if line.startswith("✗")]
    assert crosses == ["public.final", "public.manual", "public.timed"]
    text = "\n".join(lines)
    assert "✗ public.timed was set aside: DestinationError: the lake is full" in text
    assert "  Free some space." in text
    assert "walflow retry public.manual -f shop.yaml" in text
    assert "walflow resync public.final" in text
    assert "attempt is in 9 min (" in text
    assert "4 tables · 3 set aside · " in text


def test_one_that_is_tried_again_still_has_its_error() -> None:
    error = failed("public.tried", RetryKind.TIMED).error
    lines = drawn(table("public.tried", Phase.CATCHUP, error=error, attempts=2, lag_bytes=5))
    text = "\n".join(lines)
    assert "✗ public.tried failed: DestinationError: the lake is full" in text
    assert "It is being tried again now." in text
    assert "walflow retry" not in text
    assert "1 table · 1 tried again · " in text


def test_many_that_were_set_aside_leave_room_for_the_tables() -> None:
    lines = drawn(*(failed(f"public.t{number:02}") for number in range(50)), height=24)
    assert len(lines) <= 24
    assert 1 <= sum(line.startswith("✗") for line in lines) <= 3
    assert sum("Errored" in line for line in lines) >= 1
    assert any("50 set aside" in line for line in lines)


def test_it_says_what_is_being_copied_and_how_far_the_others_are() -> None:
    text = "\n".join(
        drawn(
            table("public.new", Phase.SYNC_WAIT),
            table("public.old", Phase.READY, lag_bytes=2048, lag_seconds=1.0),
            failed("public.bad", lag_bytes=1 << 30),
        )
    )
    # One that was set aside says nothing about how the pipeline keeps up.
    assert "1 set aside · 1 being copied" in text
    assert "2.0 kB and 1.5 s behind" in " ".join(text.split())


def status_of(*states: TableState) -> PipelineStatus:
    return PipelineStatus(states, Lsn(500), Lsn(400), Lsn(400), Lsn(100), 2.5)


def state(name: str, phase: Phase, position: int, **known: object) -> TableState:
    table = TableName("shop", name)
    schema = TableSchema(1, table, (), ())
    return TableState.new(schema, table, phase, position=Lsn(position), **known)


def test_speed_is_that_of_the_last_seconds() -> None:
    meter = Meter()
    first = state("orders", Phase.READY, 100, changes_applied=1000)
    assert meter.measure(status_of(first)).changes_per_second == 0
    second = state("orders", Phase.READY, 300, changes_applied=1600)
    later = meter.measure(status_of(second))
    assert 0 < later.changes_per_second <= 600


def test_the_speed_of_a_copy_and_the_time_that_is_left() -> None:
    now = 100.0
    meter = Meter(lambda: now)

    def measured(rows: int, phase: Phase = Phase.DATA_SYNC) -> TableProgress:
        copy = state("orders", phase, 0, rows_expected=1000, rows_copied=rows)
        return meter.measure(status_of(copy)).tables[0]

    assert (measured(100).rows_per_second, measured(100).seconds_left) == (0, None)
    now += 10
    assert (measured(300).rows_per_second, measured(300).seconds_left) == (20, 35)
    # What was longer ago does not count, nor does what a copy that starts over had.
    now += 31
    assert measured(310).rows_per_second == 0
    now += 2
    assert measured(10).rows_per_second == 0
    assert measured(1000, Phase.FINISHED_COPY).seconds_left is None


def test_each_table_lags_by_its_own() -> None:
    error = failed("shop.bad").error
    progress = Meter().measure(
        status_of(
            state("ahead", Phase.READY, 500),
            state("bad", Phase.ERRORED, 50, error=error),
            replace(state("behind", Phase.CATCHUP, 100), lag_seconds=2.5),
            state("new", Phase.DATA_SYNC, 0),
        )
    )
    assert [(table.lag_bytes, table.lag_seconds) for table in progress.tables] == [
        (0, 0.0),
        (450, None),
        (400, 2.5),
        (None, None),
    ]
    assert (progress.lag_bytes, progress.lag_seconds) == (400, 2.5)
    assert [table.copying for table in progress.tables] == [False, False, False, True]
    assert [str(table.name) for table in progress.set_aside] == ["shop.bad"]


class Seen:
    """A pipeline as the watcher sees it."""

    stage = "running"

    def __init__(self, status: PipelineStatus) -> None:
        self._status = status

    @property
    def pipeline(self) -> Any:
        return self

    def status(self) -> PipelineStatus:
        return self._status


def test_log_lines_name_what_is_set_aside(capsys: pytest.CaptureFixture[str]) -> None:
    before = state("bad", Phase.ERRORED, 50, error=failed("s.bad").error, since=time.time() - 60)
    seen = Seen(status_of(state("fine", Phase.READY, 500), before))
    with Watcher(Console(), "shop", "s", "d", again="-f shop.yaml", json=True) as watcher:
        for _ in range(3):
            watcher.look(seen)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    warnings = [line for line in lines if line["level"] == "warning"]
    assert [line["event"] for line in warnings] == ["a table is still set aside"]
    assert warnings[0]["table"] == "shop.bad"
    assert warnings[0]["command"] == "walflow retry shop.bad -f shop.yaml"
    assert warnings[0]["hint"].startswith("Free some space.")
    (progress,) = (line for line in lines if line["event"] == "progress")
    assert (progress["set_aside"], progress["tables"]) == ("shop.bad", 2)


def test_units_that_people_read() -> None:
    assert [human_bytes(number) for number in (0, 1023, 1536, 52_428_800, 1 << 40)] == [
        "0 B",
        "1023 B",
        "1.5 kB",
        "50 MB",
        "1.0 TB",
    ]
    assert [human_seconds(number) for number in (0.01, 0.42, 75, 600, 7200)] == [
        "0 s",
        "0.4 s",
        "75.0 s",
        "10 min",
        "2.0 h",
    ]
    assert [human_count(1234), human_count(12_345_678)] == ["1,234", "12.3M"]
    assert [human_age(number) for number in (-1, 59, 61, 7300, 3 * 86400)] == [
        "0 s",
        "59 s",
        "1 min",
        "2 h",
        "3 d",
    ]
    assert iso_time(0.5) == "1970-01-01T00:00:00.500Z"
    assert [human_rate(99_999.4), human_rate(99_999.6)] == ["99,999", "100k"]
