"""The contract of destinations finds positions and rows that do not belong together.

The bugs are planted in the tutorial's destination, which has none of them.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.docs.blocks import TUTORIAL, titled_blocks
from walflow.destinations.base import TableChanges
from walflow.destinations.rowwise import Change, RowwiseDestination
from walflow.errors import DestinationError
from walflow.model import Lsn, TableName, TableSchema
from walflow.testing.destinations import DestinationContract, assert_equal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from walflow.testing.sources import Source


def tutorial() -> Any:
    return importlib.import_module("tables_in_sqlite")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    file = tmp_path / "tables_in_sqlite.py"
    file.write_text(titled_blocks(TUTORIAL)[file.name], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("tables_in_sqlite", None)


def sound() -> type[Any]:
    found: type[Any] = tutorial().TablesInSqlite
    return found


def rows_before_the_position() -> type[Any]:
    class Planted(sound()):  # type: ignore[misc]
        """Rows in one transaction, the position in the next."""

        def write_events(self, changes: TableChanges) -> None:
            with self.transaction():
                RowwiseDestination.write_events(self, changes)
            with self.transaction():
                self.keep_position(changes.schema, changes.span.upto)

    return Planted


def batches_before_the_position() -> type[Any]:
    class Planted(sound()):  # type: ignore[misc]
        """A transaction for each batch, and then one for the position."""

        def apply_changes(self, table: TableSchema, changes: Sequence[Change]) -> None:
            with self.transaction():
                super().apply_changes(table, changes)

        def write_events(self, changes: TableChanges) -> None:
            RowwiseDestination.write_events(self, changes)
            self.mark_applied(changes.schema, changes.span.upto)

    return Planted


def the_position_before_rows() -> type[Any]:
    class Planted(sound()):  # type: ignore[misc]
        def write_events(self, changes: TableChanges) -> None:
            before = self.applied(changes.schema)
            self.mark_applied(changes.schema, changes.span.upto)
            with self.transaction():
                self.before = before
                RowwiseDestination.write_events(self, changes)

        def apply_changes(self, table: TableSchema, changes: Sequence[Change]) -> None:
            newer = [change for change in changes if change.lsn >= self.before]
            self.keep_position(table, Lsn(0))
            super().apply_changes(table, newer)
            self.keep_position(table, max([change.lsn for change in changes]) + 5)

    return Planted


def the_position_in_memory() -> type[Any]:
    class Planted(sound()):  # type: ignore[misc]
        def __init__(self, path: Path) -> None:
            super().__init__(path)
            self.positions: dict[TableName, Lsn] = {}

        def applied(self, table: TableSchema) -> Lsn | None:
            return self.positions.get(table.name)

        def keep_position(self, table: TableSchema, position: Lsn) -> None:
            self.positions[table.name] = position

        def truncate_table(self, table: TableSchema) -> None:
            super().truncate_table(table)
            self.positions.pop(table.name, None)

    return Planted


def a_position_that_outlives_the_copy() -> type[Any]:
    class Planted(sound()):  # type: ignore[misc]
        def truncate_table(self, table: TableSchema) -> None:
            position = self.applied(table)
            super().truncate_table(table)
            if position is not None:
                self.mark_applied(table, position)

    return Planted


def without_position() -> type[Any]:
    """At least once, told by each change's order: no bug yet."""

    class Ordered(sound()):  # type: ignore[misc]
        applied = mark_applied = None
        newest: dict[TableName, Any]

        def __init__(self, path: Path) -> None:
            super().__init__(path)
            self.database.execute("CREATE TABLE IF NOT EXISTS newest (name PRIMARY KEY, lsn, seq)")

        def truncate_table(self, table: TableSchema) -> None:
            super().truncate_table(table)
            self.database.execute("DELETE FROM newest WHERE name = ?", [str(table.name)])

        def newest_of(self, table: TableSchema) -> tuple[int, int]:
            found = self.database.execute(
                "SELECT lsn, seq FROM newest WHERE name = ?", [str(table.name)]
            ).fetchone()
            return found or (0, 0)

        def keep_newest(self, table: TableSchema, order: tuple[int, int]) -> None:
            self.database.execute(
                "REPLACE INTO newest VALUES (?, ?, ?)", [str(table.name), *map(int, order)]
            )

        def write_events(self, changes: TableChanges) -> None:
            RowwiseDestination.write_events(self, changes)

        def one(self, table: TableSchema, change: Change) -> None:
            sound().apply_changes(
                SimpleNamespace(
                    applied=lambda _: Lsn(0),
                    database=self.database,
                    insert=self.insert,
                ),
                table,
                [change],
            )

        def apply_changes(self, table: TableSchema, changes: Sequence[Change]) -> None:
            with self.transaction():
                for change in changes:
                    if change.order > self.newest_of(table):
                        self.one(table, change)
                        self.keep_newest(table, change.order)

    return Ordered


def the_order_committed_apart() -> type[Any]:
    class Planted(without_position()):  # type: ignore[misc]
        """Each change is committed by itself; how far it is, at the end."""

        def apply_changes(self, table: TableSchema, changes: Sequence[Change]) -> None:
            newest = self.newest_of(table)
            for change in changes:
                if change.order > newest:
                    self.one(table, change)
                    newest = change.order
            self.keep_newest(table, newest)

    return Planted


def the_order_in_memory() -> type[Any]:
    class Planted(without_position()):  # type: ignore[misc]
        def __init__(self, path: Path) -> None:
            super().__init__(path)
            self.orders: dict[TableName, tuple[int, int]] = {}

        def truncate_table(self, table: TableSchema) -> None:
            super().truncate_table(table)
            self.orders.pop(table.name, None)

        def newest_of(self, table: TableSchema) -> tuple[int, int]:
            return self.orders.get(table.name, (0, 0))

        def keep_newest(self, table: TableSchema, order: tuple[int, int]) -> None:
            self.orders[table.name] = order

    return Planted


def errors_swallowed() -> type[Any]:
    class Planted(without_position()):  # type: ignore[misc]
        def apply_changes(self, table: TableSchema, changes: Sequence[Change]) -> None:
            with self.transaction():
                try:
                    for change in changes:
                        if change.order > self.newest_of(table):
                            self.one(table, change)
                            self.keep_newest(table, change.order)
                except DestinationError:
                    pass

    return Planted


def at_home_in_spark() -> type[Any]:
    class Planted:
        """Marks the position, and has Spark read the changes then."""

        name = "planted"

        def __init__(self, path: Path) -> None:
            inner = sound()(path)
            self.shutdown, self.truncate_table = inner.shutdown, inner.truncate_table
            self.write_table_rows = inner.write_table_rows
            self.applied, self.mark_applied = inner.applied, inner.mark_applied
            self.inner = inner

        def write_events(self, changes: TableChanges) -> None:
            self.mark_applied(changes.schema, changes.span.upto)
            changes.net().collect()

    return Planted


CHANGES = DestinationContract.test_changes_that_break_off_in_the_middle
COPY = DestinationContract.test_a_copy_that_breaks_off_in_the_middle
RESTART = DestinationContract.test_a_restart_finds_the_rows_and_the_position


@pytest.mark.spark
@pytest.mark.parametrize(
    ("plant", "test", "how", "words"),
    [
        (without_position, CHANGES, ("keyless", "restarted"), None),
        (rows_before_the_position, CHANGES, ("keyless", "tried_again"), "asked for the position"),
        (batches_before_the_position, CHANGES, ("keyed", "restarted"), "before its row 4"),
        (the_position_before_rows, CHANGES, ("keyless", "tried_again"), "before its row 1"),
        (at_home_in_spark, CHANGES, ("keyless", "tried_again"), "could not be read"),
        (the_position_in_memory, CHANGES, ("keyed", "restarted"), "the position is gone"),
        (the_position_in_memory, RESTART, (), "assert None == "),
        (a_position_that_outlives_the_copy, COPY, ("tried_again",), "no complete copy"),
        (the_order_committed_apart, CHANGES, ("keyless", "tried_again"), "before its row 2"),
        (the_order_in_memory, RESTART, (), "rows stored"),
        (errors_swallowed, CHANGES, ("keyed", "tried_again"), "nothing was raised"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_does_not_belong_together_is_found(
    spark: SparkSession,
    folder: Path,
    plant: Callable[[], type[Any]],
    test: Callable[..., None],
    how: tuple[str, ...],
    words: str | None,
) -> None:
    made = plant()
    with ExitStack() as opened:

        def reopen() -> Any:
            found = made(folder / "tables.db")
            opened.callback(found.shutdown)
            return found

        request: Any = SimpleNamespace(getfixturevalue=lambda _: reopen)

        def check(source: Source) -> None:
            assert_equal(tutorial().rows_of(folder / "tables.db", source.schema), source)

        failed = ""
        try:
            test(DestinationContract(), reopen(), spark, check, request, folder, *how)
        except Exception as error:
            failed = "\n".join([repr(error), *getattr(error, "__notes__", ())])
    assert words in failed if words else not failed, failed


UNCHECKED = """
import pytest
from tables_in_sqlite import TablesInSqlite, rows_of
from walflow.testing.destinations import DestinationContract


class TestMine(DestinationContract):
    @pytest.fixture
    def spark(self):
        return None

    @pytest.fixture
    def destination(self, tmp_path):
        return TablesInSqlite(tmp_path / "tables.db")

    @pytest.fixture
    def read_rows(self, tmp_path):
        return lambda table: rows_of(tmp_path / "tables.db", table)
"""


def test_a_run_without_reopen_says_what_was_not_checked(folder: Path) -> None:
    (folder / "test_mine.py").write_text(UNCHECKED)
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"),
            *("-k", "test_a_restart or (break and restarted) or test_it_is"),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "= not checked =" in ran.stdout
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("TestMine: ")]
    assert "survive a restart" in line
    assert "Give the fixture `reopen`" in line
