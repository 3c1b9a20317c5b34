"""``walflow bench``: a small run of it, for the form of its output."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from tests.cli.commands import Room
from walflow.bench.five_tables import TABLES
from walflow.bench.jvm_memory import JvmMemory
from walflow.bench.python_memory import PythonMemory
from walflow.bench.soak import Minute, growth, show_soak


def test_capture_prints_one_object_a_workload_last(room: Room) -> None:
    small = ("--changes", "2000", "--repeat", "1", "--only", "one-transaction")
    ran = room.run("bench", "capture", *small, "--json")
    assert ran.returncode == 0, ran.stderr
    results = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert [result["name"] for result in results] == [
        "one-transaction/backlog",
        "one-transaction/live",
    ]
    for result in results:
        assert set(result) == {
            "name", "rows", "wall_s", "cpu_s_per_million", "reference", "reference_wall_s", "ratio",
        }  # fmt: skip


def test_an_unknown_workload(room: Room) -> None:
    ran = room.run("bench", "capture", "--only", "nothing")
    assert ran.returncode == 2
    assert "'nothing'" in ran.stderr


def _minute(
    number: int, *, threads: int = 50, code: float = 0, live: float | None = None
) -> Minute:
    jvm = JvmMemory(
        resident_mb=900 + code,
        heap_mb=300,
        committed_mb=400,
        metaspace_mb=90,
        code_mb=code,
        buffers_mb=5,
        threads=threads,
        classes=30_000,
        classes_ever=30_000,
        compile_seconds=1,
    )
    python = PythonMemory(250, 10, 30, 500_000, 30)
    batches, seconds = dict.fromkeys(TABLES, 9), dict.fromkeys(TABLES, 0.3)
    return Minute(number, jvm, live, python, 0.5, 0.4, batches, seconds, {"data": 40}, 8)


def test_what_grew_is_of_the_second_half() -> None:
    first = [_minute(1, threads=10), _minute(2, code=40, live=200)]
    grew = growth([*first, _minute(3, code=42), _minute(4, code=44)])
    assert grew["threads"].per_hour == 0
    assert grew["code cache, MB"].per_hour == pytest.approx(120)
    assert (grew["code cache, MB"].early, grew["code cache, MB"].end) == (42, 44)
    assert grew["JVM, MB"].per_hour == pytest.approx(120)
    assert grew["files: data"].per_hour == 0
    assert grew["Python without Arrow's, MB"].end == 240
    # It is not known at two moments of the second half.
    assert "heap after collection, MB" not in grew


def test_a_summary_tells_of_the_tenth_minute_and_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    minutes = [_minute(n, code=n, live=100 + n if n % 5 == 0 else None) for n in range(1, 31)]
    grew = growth(minutes)
    assert (grew["code cache, MB"].early, grew["code cache, MB"].end) == (10, 30)
    live = grew["heap after collection, MB"]
    assert (live.early, live.end) == (110, 130)
    assert live.per_hour == pytest.approx(60)
    show_soak(Console(width=200), iter(minutes), as_json=False)
    *_, summary = capsys.readouterr().out.partition("minute 10")
    rows = [line.split() for line in summary.splitlines()]
    assert ["heap", "after", "collection,", "MB", "110.00", "130.00", "+60.00"] in rows


@pytest.mark.long
@pytest.mark.spark
def test_a_soak_tells_each_minute_and_what_grew(room: Room) -> None:
    ran = room.run("bench", "soak", "--minutes", "2", "--per-second", "50", "--json", seconds=900)
    assert ran.returncode == 0, ran.stderr
    *minutes, grew = (json.loads(line) for line in ran.stdout.splitlines() if line[:1] == "{")
    assert [one["minute"] for one in minutes] == [1, 2]
    tables = {"plain", "overflow", "keyless", "moving", "emptied"}
    for one in minutes:
        assert set(one["batches"]) == tables
        assert one["files"]["data"] > 0
        assert one["files"]["log"] > 0
        assert one["jvm"]["resident_mb"] > one["jvm"]["metaspace_mb"] > 0
    assert grew["name"] == "soak-growth"
    assert minutes[-1]["live_mb"] > 0


@pytest.mark.long
@pytest.mark.spark
def test_hard_batches_of_both_formats(room: Room) -> None:
    small = ("--rows", "1000", "--repeat", "1", "--json")
    ran = room.run("bench", "apply", "--hard", *small, seconds=900)
    assert ran.returncode == 0, ran.stderr
    assert "left to Spark" not in ran.stdout + ran.stderr, "a debug line, of each batch of Delta's"
    results = [json.loads(line) for line in ran.stdout.splitlines() if line[:1] == "{"]
    names = {one["name"] for one in results}
    kinds = ("overflow", "moving", "emptied", "keyless")
    assert names == {
        f"{format}, 0.001M rows, {kind}, 100" for format in ("iceberg", "delta") for kind in kinds
    }
    assert all(one["jobs"] <= 2 for one in results if "jobs" in one and "iceberg" in one["name"])


@pytest.mark.long
@pytest.mark.spark
def test_latency_of_hard_changes(room: Room) -> None:
    few = ("--rows", "2000", "--per-second", "20", "--seconds", "35", "--table", "hard", "--json")
    ran = room.run("bench", "latency", *few, seconds=900)
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout.splitlines()[-1])
    assert result["name"] == "latency, hard"
    assert result["commits"] == 20 * 35
