"""The contract of destinations as tests: derive a class, give two fixtures, and yours is checked.

    from collections.abc import Iterator

    import pytest
    from walflow.testing.destinations import DestinationContract, ReadRows

    from my_destination import MyDestination

    pytest_plugins = ["walflow.testing.spark"]


    class TestMyDestination(DestinationContract):
        @pytest.fixture
        def destination(self) -> Iterator[MyDestination]:
            yield MyDestination(…)

        @pytest.fixture
        def reopen(self) -> Reopen:
            return lambda: MyDestination(…)

        @pytest.fixture
        def read_rows(self) -> ReadRows:
            return lambda table: rows_in_my_database(table.name)

``reopen`` makes another instance on the same target, as after a restart of the process: what the
first one only had in memory is gone. (It may close the former one.) Without it, what a restart
finds is not checked, and the run says so at its end. A destination that is not to survive a restart
has ``persistent = False`` instead. ``read_rows`` reads the target, whichever instance wrote it: it
gives the rows that the destination has of a table, by column name, with values as
``walflow.destinations.rowwise`` has them, of these very types. A destination that keeps the exact
texts of values gives ``walflow.testing.sources.Inexact(value, text)`` where there is one, and its
class of tests has ``keeps_exact = True``. Tables have names of their own in every test, so the
destination may be one for all of them. The fixture ``spark`` is a session; the plugin
``walflow.testing.spark`` has one, for destinations that need no jars.

What comes is what a pipeline brings: files of a change log, as Spark reads them.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    import pytest
except ModuleNotFoundError as missing:
    raise ImportError("The contract of destinations is for pytest: pip install pytest") from missing

from walflow.destinations.arrow import ArrowDestination
from walflow.destinations.base import Destination, TableChanges
from walflow.destinations.own import OwnDestination, adapted
from walflow.destinations.rowwise import Row
from walflow.errors import DestinationError
from walflow.evolution import Evolution, NotFollowed
from walflow.model import Span, TableSchema
from walflow.testing.destination_breaks import Reopen, RestartContract, tell_unchecked
from walflow.testing.destination_samples import (
    ALL_TYPES,
    keyed_source,
    keyless_source,
    other_schema,
    source_of,
    tell_keyed_story,
    tell_keyless_story,
    tell_truncate_story,
    tell_types,
)
from walflow.testing.faults import FaultyDestination
from walflow.testing.sources import Inexact, Source, assert_same

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["DestinationContract", "ReadRows", "Reopen"]

ReadRows = Callable[[TableSchema], Sequence[Row]]


class DestinationContract(RestartContract):
    """What every destination does. Derive from it, and give the fixtures ``destination``,
    ``read_rows`` and ``reopen``."""

    keeps_exact = False
    """Whether ``read_rows`` returns Postgres's own text of values that a column cannot hold."""

    @pytest.fixture
    def destination(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no fixture destination")

    @pytest.fixture
    def read_rows(self) -> ReadRows:
        raise NotImplementedError(f"{type(self).__name__} has no fixture read_rows")

    @pytest.fixture
    def reopen(self, request: pytest.FixtureRequest) -> Reopen:
        unchecked = (
            f"{type(self).__name__}: whether the rows and the position survive a restart, and a "
            "call that a crash broke off. Give the fixture `reopen`, which returns a function that "
            "makes another instance on the same target (or say persistent = False)."
        )
        tell_unchecked(request.config, unchecked)
        pytest.skip(f"not checked: {unchecked}")

    @pytest.fixture
    def check(self, read_rows: ReadRows) -> Callable[[Source], None]:
        """Compares the destination's table with the source's."""
        return lambda source: assert_equal(read_rows(source.schema), source, exact=self.keeps_exact)

    # -- copies -------------------------------------------------------------------------------

    def test_it_is_a_destination(self, destination: Any) -> None:
        name = adapted(destination).name
        assert isinstance(name, str)
        assert name

    def test_empty_rows_make_the_table(
        self,
        destination: Any,
        spark: SparkSession,
        check: Callable[[Source], None],
        tmp_path: Path,
    ) -> None:
        source = source_of({"id": "bigint", "v": "string"}, ["id"], tmp_path)
        called = adapted(destination)
        if called.capabilities.keeps_position:
            assert called.applied(source.schema) is None, "nothing was copied yet"
        called.copy(source.copy(spark))
        check(source)
        if called.capabilities.keeps_position:
            assert called.applied(source.schema) == source.position

    def test_a_table_is_truncated_whether_it_is_there_or_not(
        self,
        destination: Any,
        spark: SparkSession,
        read_rows: ReadRows,
        check: Callable[[Source], None],
        tmp_path: Path,
    ) -> None:
        source = keyed_source(tmp_path)
        called = adapted(destination)
        copied = source.copy(spark)
        if isinstance(called, OwnDestination):
            destination.truncate_table(source.schema)
            destination.truncate_table(source.schema)
            # The copy may come in several parts.
            destination.write_table_rows(source.schema, copied.rows.where("id <= 2"))
            destination.write_table_rows(source.schema, copied.rows.where("id > 2"))
            check(source)
        # It broke off, and begins anew: nothing comes twice.
        called.copy(copied)
        called.copy(copied)
        check(source)
        called.copy(replace(copied, files=()))
        assert list(read_rows(source.schema)) == []

    def test_a_copy_whose_answer_got_lost(
        self,
        destination: Any,
        spark: SparkSession,
        check: Callable[[Source], None],
        tmp_path: Path,
    ) -> None:
        source = keyless_source(tmp_path)
        faulty = FaultyDestination(
            destination, "write_table_rows@1=lost; truncate_table@2=lost; copy@1=fail; copy@2=lost"
        )
        called, copied = adapted(faulty), source.copy(spark)
        for _ in range(2):
            with pytest.raises(DestinationError, match="was told to"):
                called.copy(copied)
        called.copy(copied)
        check(source)

    def test_a_copy_that_is_older_than_the_changes(
        self,
        destination: Any,
        spark: SparkSession,
        check: Callable[[Source], None],
        tmp_path: Path,
    ) -> None:
        """A resync with a copy that was read earlier: existing rows go, and so does what shows that
        changes were applied already."""
        source = keyed_source(tmp_path)
        called, copied = adapted(destination), source.copy(spark)
        tell_keyed_story(source)
        changes = source.events(spark)
        for _ in ("a copy", "another one of the same moment"):
            called.copy(copied)
            called.apply(changes)
            check(source)

    # -- values -------------------------------------------------------------------------------

    def test_all_types(
        self,
        destination: Any,
        spark: SparkSession,
        check: Callable[[Source], None],
        tmp_path: Path,
    ) -> None:
        source = source_of(ALL_TYPES, ["id"], tmp_path)
        tell_types(source, 1)
        adapted(destination).copy(source.copy(spark))
        check(source)
        tell_types(source, 11)
        with source.transaction():
            first, second = source.find(id=1), source.find(id=2)
            others = {name: value for name, value in first.items() if name != "id"}
            nothing: dict[str, Any] = dict.fromkeys(others)
            source.update(second, **others)
            source.update(first, **nothing)
        adapted(destination).apply(source.events(spark))
        check(source)

    # -- changes ------------------------------------------------------------------------------

    def test_changes_are_applied_in_their_order(
        self,
        destination: Any,
        spark: SparkSession,
        check: Callable[[Source], None],
        tmp_path: Path,
    ) -> None:
        source = keyed_source(tmp_path)
        adapted(destination).copy(source.copy(spark))
        tell_keyed_story(source)
        called, changes = adapted(destination), source.events(spark, pieces=3)
        called.apply(changes)
        check(source)
        if called.capabilities.keeps_position:
            assert called.applied(source.schema) == changes.span.upto

    def test_tables_without_a_key(
        self,
        destination: Any,
        spark: SparkSession,
        check: Callable[[Source], None],
        tmp_path: Path,
    ) -> None:
        source = keyless_source(tmp_path)
        adapted(destination).copy(source.copy(spark))
        tell_keyless_story(source)
        called, changes = adapted(destination), source.events(spark)
        called.apply(changes)
        check(source)
        # Here more than anywhere a batch that comes again would show.
        called.apply(changes)
        check(source)

    def test_a_batch_whose_answer_got_lost(
        self,
        destination: Any,
        spark: SparkSession,
        check: Callable[[Source], None],
        tmp_path: Path,
    ) -> None:
        source = keyed_source(tmp_path)
        adapted(destination).copy(source.copy(spark))
        tell_keyed_story(source)
        changes = source.events(spark)
        for action in ("fail", "lost"):
            if not isinstance(destination, ArrowDestination):
                break  # it gets a batch as a whole
            with (
                breaking_in_the_middle(destination, action),
                pytest.raises(DestinationError, match="write_change_batch was told to"),
            ):
                destination.write_events(changes)
        script = "{0}@1=fail; {0}@2=lost; {1}@1=fail; {1}@2=lost".format("apply", "write_events")
        called = adapted(FaultyDestination(destination, script))
        for _ in ("nothing was done", "all was done"):
            with pytest.raises(DestinationError, match="was told to"):
                called.apply(changes)
        called.apply(changes)
        check(source)

    def test_a_batch_that_comes_again_with_more(
        self,
        destination: Any,
        spark: SparkSession,
        check: Callable[[Source], None],
        tmp_path: Path,
    ) -> None:
        """As after a crash: the last position is forgotten, and more has been received."""
        source = keyed_source(tmp_path)
        adapted(destination).copy(source.copy(spark))
        tell_keyed_story(source)
        first = source.events(spark)
        adapted(destination).apply(first)
        with source.transaction():
            source.update(source.find(id=1), unsent=["big"], v="later")
            source.delete(source.find(id=51))
            source.insert(id=5, v="anew", big=None)
        adapted(destination).apply(joined(first, source.events(spark)))
        check(source)

    def test_a_table_gets_another_schema(
        self,
        destination: Any,
        spark: SparkSession,
        check: Callable[[Source], None],
        tmp_path: Path,
    ) -> None:
        source = keyed_source(tmp_path)
        adapted(destination).copy(source.copy(spark))
        way = source.change_schema(other_schema(source.schema), {"n": 7})
        if not follow(adapted(destination), way):
            adapted(destination).copy(source.copy(spark))
        with source.transaction():
            source.update(source.find(id=1), w="new name")
            source.insert(id=9, w=None, n=9)
        adapted(destination).apply(source.events(spark))
        check(source)

    # -- many tables --------------------------------------------------------------------------

    def test_several_tables_at_once(
        self,
        destination: Any,
        spark: SparkSession,
        check: Callable[[Source], None],
        tmp_path: Path,
    ) -> None:
        sources = [keyed_source(tmp_path) for _ in range(2)]

        def work(source: Source) -> None:
            adapted(destination).copy(source.copy(spark))
            with source.transaction():
                source.update(source.find(id=1), v=str(source.schema.name))
            adapted(destination).apply(source.events(spark))

        with ThreadPoolExecutor(len(sources)) as pool:
            list(pool.map(work, sources))
        for source in sources:
            check(source)
        for source in sources:
            tell_truncate_story(source)
            adapted(destination).apply(source.events(spark))
        for source in sources:
            check(source)


def joined(first: TableChanges, second: TableChanges) -> TableChanges:
    """Two consecutive batches of one table, as one."""
    return replace(
        second,
        files=first.files + second.files,
        stats=first.stats + second.stats,
        span=Span(first.span.after, second.span.upto),
    )


def follow(destination: Destination, way: Evolution) -> bool:
    """Whether the destination's table has the other schema now. Otherwise it has to be copied."""
    if not destination.capabilities.evolves:
        return False
    try:
        destination.evolve(way)
        destination.evolve(way)
    except NotFollowed:
        return False
    return True


@contextmanager
def breaking_in_the_middle(destination: ArrowDestination, action: str) -> Iterator[None]:
    """A batch arrives in small pieces, and the second of these fails, or its answer is lost."""
    numbers = itertools.count(1)
    write = destination.write_change_batch

    def write_or_fail(table: TableSchema, changes: pa.RecordBatch) -> None:
        strikes = next(numbers) == 2
        if strikes and action == "fail":
            raise DestinationError("write_change_batch was told to fail")
        write(table, changes)
        if strikes:
            raise DestinationError("the answer of write_change_batch was told to get lost")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(destination, "batch_rows", 3)
        patch.setattr(destination, "write_change_batch", write_or_fail)
        yield


def assert_equal(stored: Sequence[Row], source: Source, *, exact: bool = False) -> None:
    """Whether both have the same rows, in any order: the same values of the same types, whatever
    their notation (digits after the point, zone). ``exact``: with the same overflow texts."""
    names = source.schema.column_names
    assert_same(
        [{name: _plain(row[name], exact) for name in names} for row in stored],
        [{name: _plain(row[name], exact) for name in names} for row in source.rows],
    )


def _plain(value: Any, exact: bool) -> Any:
    """An object whose ``repr`` is equal only for the same value of the same type."""
    match value:
        case Inexact():
            near = _plain(value.near, exact)
            return Inexact(near, value.text) if exact else near
        case Decimal():
            text = format(value, "f")
            return Decimal, text.rstrip("0").rstrip(".") if "." in text else text
        case datetime.datetime() if value.tzinfo is not None:
            return value.astimezone(datetime.UTC)
        case bytes() | bytearray() | memoryview():
            return bytes(value)
        case list() | tuple():
            return [_plain(element, exact) for element in value]
    return value
