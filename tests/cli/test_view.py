"""The live view: what it shows, in which order, and that it fits."""

from __future__ import annotations

import io

from rich.console import Console

from walflow.cli.progress import Meter, Progress, TableProgress
from walflow.cli.view import View, human_bytes, human_count, human_rate, human_seconds
from walflow.model import Lsn, Phase, TableName, TableSchema
from walflow.pipeline.pipeline import PipelineStatus
from walflow.pipeline.tables import TableState


def table(name: str, phase: Phase, **known: float | None) -> TableProgress:
    values = {
        "rows_expected": 0,
        "rows_copied": 0,
        "changes": 0,
        "changes_per_second": 0.0,
        "lag_bytes": None,
        "lag_seconds": None,
    } | known
    return TableProgress(name, phase, **values)  # type: ignore[arg-type]


def drawn(*tables: TableProgress, stage: str = "", width: int = 80, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True)
    view = View(console, "shop", "postgresql://app@db:5432/shop", "iceberg:///lake")
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
        table("a.half", Phase.DATA_SYNC, rows_expected=200, rows_copied=100),
        table("b.more", Phase.DATA_SYNC, rows_expected=100, rows_copied=300),
        stage="copying",
    )
    assert any("a.half" in line and "━" in line and "50%" in line for line in lines)
    assert any("b.more" in line and "99%" in line for line in lines)
    assert any("copying …" in line for line in lines)


def test_of_many_tables_those_that_need_a_look_come_first() -> None:
    quiet = [
        table(f"s.t{number:02}", Phase.READY, lag_bytes=0, lag_seconds=0.0) for number in range(40)
    ]
    busy = table("z.busy", Phase.READY, changes_per_second=500.0, lag_bytes=9, lag_seconds=0.1)
    copying = table("z.copying", Phase.DATA_SYNC)
    failed = table("z.failed", Phase.ERRORED)
    lines = drawn(*quiet, busy, copying, failed, height=20)
    assert len(lines) <= 20
    names = [line.split()[0] for line in lines if line.startswith(("s.", "z."))]
    assert names[:4] == ["z.failed", "z.copying", "z.busy", "s.t00"]
    assert f"… and {43 - len(names)} more" in "\n".join(lines)


def test_speed_is_that_of_the_last_seconds() -> None:
    schema = TableSchema(1, TableName("shop", "orders"), (), ())

    def status(changes: int, position: int) -> PipelineStatus:
        state = TableState(schema, Phase.READY, Lsn(position), changes_applied=changes)
        return PipelineStatus((state,), Lsn(500), Lsn(400), Lsn(position), 2.5)

    meter = Meter()
    assert meter.measure(status(1000, 100)).changes_per_second == 0
    later = meter.measure(status(1600, 300))
    assert 0 < later.changes_per_second <= 600
    assert (later.tables[0].lag_bytes, later.tables[0].lag_seconds) == (200, 2.5)
    assert meter.measure(status(1600, 400)).tables[0].lag_seconds == 0


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
    assert [human_rate(99_999.4), human_rate(99_999.6)] == ["99,999", "100k"]
