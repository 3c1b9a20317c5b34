"""``walflow bench``: a small run of it, for the form of its output."""

from __future__ import annotations

import json

from tests.cli.commands import Room


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
