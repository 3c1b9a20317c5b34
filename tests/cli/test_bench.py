"""``walflow bench``: a small run of it, for the form of its output."""

from __future__ import annotations

import json

import pytest

from tests.cli.commands import Room
from walflow.bench.jvm_memory import JvmMemory
from walflow.bench.soak import Minute, growth


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


def test_what_grew_is_of_the_second_half() -> None:
    def minute(number: int, threads: int, code: float) -> Minute:
        jvm = JvmMemory(
            resident_mb=900 + code,
            heap_mb=300,
            metaspace_mb=90,
            code_mb=code,
            buffers_mb=5,
            threads=threads,
            classes=30_000,
            classes_ever=30_000,
            compile_seconds=1,
        )
        return Minute(number, jvm, 250, 0.5, 0.4, {"a": 9}, {"a": 0.3}, {"a": 40})

    grew = growth([minute(1, 10, 0), minute(2, 50, 40), minute(3, 50, 42), minute(4, 50, 44)])
    assert grew["threads"] == 0
    assert grew["code cache, MB"] == pytest.approx(2)
    assert grew["JVM, MB"] == pytest.approx(2)
    assert grew["files"] == 0


@pytest.mark.long
@pytest.mark.spark
def test_a_soak_tells_each_minute_and_what_grew(room: Room) -> None:
    ran = room.run("bench", "soak", "--minutes", "2", "--per-second", "50", "--json", seconds=900)
    assert ran.returncode == 0, ran.stderr
    *minutes, grew = (json.loads(line) for line in ran.stdout.splitlines() if line[:1] == "{")
    assert [one["minute"] for one in minutes] == [1, 2]
    tables = {"plain", "overflow", "keyless", "moving", "emptied"}
    for one in minutes:
        assert set(one["files"]) == set(one["batches"]) == tables
        assert one["jvm"]["resident_mb"] > one["jvm"]["metaspace_mb"] > 0
    assert grew["name"] == "soak-growth"


@pytest.mark.long
@pytest.mark.spark
def test_hard_batches_of_both_formats(room: Room) -> None:
    small = ("--rows", "1000", "--repeat", "1", "--json")
    ran = room.run("bench", "apply", "--hard", *small, seconds=900)
    assert ran.returncode == 0, ran.stderr
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
