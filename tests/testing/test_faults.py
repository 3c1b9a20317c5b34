"""Faults on purpose strike where the script says, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from walflow.destinations.base import Capabilities
from walflow.destinations.own import adapted
from walflow.errors import ConfigError, DestinationError, FailpointReached
from walflow.evolution import Evolution
from walflow.failpoints import END_VARIABLE, VARIABLE, failpoint, set_failpoints
from walflow.model import Lsn, TableSchema
from walflow.testing.faults import FaultyDestination, failpoints
from walflow.testing.sources import make_schema

ONE, TWO = (make_schema({"id": "int"}, ["id"], name) for name in ("one", "two"))


class Notebook:
    """Writes down what it does."""

    name = "notebook"

    def __init__(self) -> None:
        self.done: list[str] = []

    def truncate_table(self, table: TableSchema) -> None:
        self.done.append(f"truncate {table.name}")

    def write_table_rows(self, table: TableSchema, rows: object) -> None:
        self.done.append(f"rows {table.name}")

    def write_events(self, changes: object) -> None:
        self.done.append("events")

    def applied(self, table: TableSchema) -> Lsn | None:
        return Lsn(7)

    def mark_applied(self, table: TableSchema, position: Lsn) -> None:
        self.done.append(f"mark {table.name}")

    def change_table(self, evolution: Evolution) -> None:
        self.done.append(f"change {evolution.after.name}")


def test_it_offers_what_the_one_inside_does() -> None:
    inner = Notebook()
    faulty = FaultyDestination(inner)
    assert adapted(faulty).capabilities == Capabilities(keeps_position=True, evolves=True)
    assert faulty.name == "notebook"
    assert faulty.applied(ONE) == 7
    faulty.change_table(Evolution(ONE, ONE))
    assert faulty.calls == [("applied", ONE.name), ("change_table", ONE.name)]


def test_it_fails_by_its_script() -> None:
    inner = Notebook()
    faulty = FaultyDestination(
        inner, "truncate_table[public.two]=fail; truncate_table@2=lost; mark_applied=sleep:0.01"
    )
    faulty.truncate_table(ONE)
    with pytest.raises(DestinationError, match="told to get lost"):
        faulty.truncate_table(ONE)
    with pytest.raises(DestinationError, match="told to fail"):
        faulty.truncate_table(TWO)
    faulty.write_events(None)
    faulty.mark_applied(ONE, Lsn(1))
    assert inner.done == ["truncate public.one"] * 2 + ["events", "mark public.one"]
    faulty.script("")
    faulty.truncate_table(TWO)
    assert inner.done[-1] == "truncate public.two"


def test_a_script_that_is_none() -> None:
    with pytest.raises(ConfigError, match="'write_events=explode', which is not name"):
        FaultyDestination(Notebook(), "write_events=explode")


def test_failpoints_last_as_long_as_the_block() -> None:
    with failpoints("apply.write[public.one]=raise"):
        failpoint("apply.write", TWO.name)
        with pytest.raises(FailpointReached):
            failpoint("apply.write", ONE.name)
    failpoint("apply.write", ONE.name)


def test_who_is_held_goes_on_when_the_failpoints_are_replaced() -> None:
    passed: list[str] = []

    def work() -> None:
        failpoint("apply.write", ONE.name)
        passed.append("apply.write")
        failpoint("apply.written", ONE.name)
        passed.append("apply.written")

    with failpoints("apply.write[public.one]=hold"):
        failpoint("apply.write", TWO.name)
        worker = threading.Thread(target=work)
        worker.start()
        worker.join(0.3)
        assert passed == []
        set_failpoints("apply.written=hold")
        worker.join(0.3)
        assert "apply.written" not in passed
    worker.join(60)
    assert passed == ["apply.write", "apply.written"]


def test_nobody_is_held_for_ever() -> None:
    with (
        failpoints("apply.write=hold:0.1"),
        pytest.raises(FailpointReached, match=r"apply\.write \(public\.one\) was held for 0\.1 s"),
    ):
        failpoint("apply.write", ONE.name)


def test_a_process_is_held_until_a_file_is_there(tmp_path: Path) -> None:
    program = (
        "from walflow.failpoints import failpoint\n"
        "print('there', flush=True)\n"
        "failpoint('apply.write')\n"
        "print('on', flush=True)\n"
    )
    end = tmp_path / "end"
    environment = os.environ | {VARIABLE: "apply.write=hold", END_VARIABLE: str(end)}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "there\n"
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(0.3)
            end.touch()
            assert child.stdout.readline() == "on\n"
            assert child.wait(60) == 0
        finally:
            child.kill()


def test_one_inside_another() -> None:
    notebook = Notebook()
    inner = FaultyDestination(notebook, "mark_applied=fail")
    outer = FaultyDestination(inner, "truncate_table=fail")
    assert outer.inner is inner
    with pytest.raises(DestinationError, match="truncate_table was told to fail"):
        outer.truncate_table(ONE)
    with pytest.raises(DestinationError, match="mark_applied was told to fail"):
        outer.mark_applied(ONE, Lsn(1))
    assert [name for name, _ in outer.calls] == ["truncate_table", "mark_applied"]
    assert [name for name, _ in inner.calls] == ["mark_applied"]
    outer.script("")
    outer.truncate_table(ONE)
    assert notebook.done == ["truncate public.one"]
