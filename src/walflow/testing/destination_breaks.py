"""The part of the destinations' contract about interruptions: calls that are broken off, and
restarts.

It is used through ``walflow.testing.destinations.DestinationContract``, which has the fixtures.

How a call is broken off depends on its arguments. Iterators of batches and changes raise when they
are read up to a place, at each place in turn. Spark gets files of which one is unreadable. And the
position of the changes raises when it is asked for after the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from walflow.destinations.arrow import ArrowDestination
from walflow.destinations.base import Destination, TableChanges, TableCopy
from walflow.destinations.own import OwnDestination, adapted
from walflow.destinations.rowwise import RowwiseDestination
from walflow.errors import DestinationError
from walflow.model import Lsn, Span, TableSchema
from walflow.testing.destination_samples import (
    keyed_source,
    keyless_source,
    tell_keyed_story,
    tell_keyless_story,
)
from walflow.testing.sources import Source

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["Reopen", "RestartContract", "tell_unchecked"]

Reopen = Callable[[], Any]

_BATCH_ROWS = 3
_PIECES = 2
"""How many files changes come in, for a destination that reads files."""

_STORIES: Mapping[str, tuple[Callable[[Path], Source], Callable[[Source], None]]] = {
    "keyed": (keyed_source, tell_keyed_story),
    "keyless": (keyless_source, tell_keyless_story),
}


class BrokenOff(DestinationError):
    """Raised in the middle of a call."""


class RestartContract:
    """Wherever a call ends, the stored position and the rows must belong together."""

    persistent: ClassVar[bool] = True
    """False for a destination that loses its tables when it ends: it is not opened again."""

    @pytest.mark.parametrize("story", list(_STORIES))
    @pytest.mark.parametrize("then", ["tried_again", "restarted"])
    def test_changes_that_break_off_in_the_middle(
        self,
        destination: Any,
        spark: SparkSession,
        check: Callable[[Source], None],
        request: pytest.FixtureRequest,
        tmp_path: Path,
        story: str,
        then: str,
    ) -> None:
        reopen = self._reopening(request) if then == "restarted" else None
        make, tell = _STORIES[story]
        source = make(tmp_path)
        copied = source.copy(spark)
        tell(source)
        changes = source.events(spark, pieces=_PIECES)
        for place in _places(destination, copied, changes):
            if place.anew:
                place.copy(destination, copied)
            place.strike(destination, changes)
            if reopen is not None:
                destination = reopen()
            with _naming_break(place):
                left = _left(adapted(destination), changes, copied.position)
                if place.heals and left is not None:
                    place.apply(destination, left)
                    left = _left(adapted(destination), left, changes.span.upto)
                if place.heals or left is None:
                    check(source)

    @pytest.mark.parametrize("then", ["tried_again", "restarted"])
    def test_a_copy_that_breaks_off_in_the_middle(
        self,
        destination: Any,
        spark: SparkSession,
        check: Callable[[Source], None],
        request: pytest.FixtureRequest,
        tmp_path: Path,
        then: str,
    ) -> None:
        reopen = self._reopening(request) if then == "restarted" else None
        source = keyless_source(tmp_path)
        copied = source.copy(spark)
        # There is a complete table, with a position, and it is copied again.
        adapted(destination).copy(copied)
        for place in _places_of_copy(destination, copied):
            place.strike_copy(destination, copied)
            if reopen is not None:
                destination = reopen()
            with _naming_break(place):
                _check_no_half_copy(destination, source, check)
        adapted(destination).copy(copied)
        check(source)

    def test_a_restart_finds_the_rows_and_the_position(
        self,
        destination: Any,
        spark: SparkSession,
        check: Callable[[Source], None],
        request: pytest.FixtureRequest,
        tmp_path: Path,
    ) -> None:
        reopen = self._reopening(request)
        source = keyless_source(tmp_path)
        adapted(destination).copy(source.copy(spark))
        called = adapted(reopen())
        check(source)
        if called.capabilities.keeps_position:
            assert called.applied(source.schema) == source.position
        tell_keyless_story(source)
        changes = source.events(spark)
        called.apply(changes)
        for _ in ("all comes again", "and once more"):
            called = adapted(reopen())
            check(source)
            if called.capabilities.keeps_position:
                assert called.applied(source.schema) == changes.span.upto
            called.apply(changes)
            check(source)

    def _reopening(self, request: pytest.FixtureRequest) -> Reopen:
        if not self.persistent:
            pytest.skip("persistent = False: this destination is not expected to survive a restart")
        reopen: Reopen = request.getfixturevalue("reopen")
        return reopen


def _left(destination: Destination, changes: TableChanges, at_least: Lsn) -> TableChanges | None:
    """What a pipeline would send next: the changes since the position that the destination has for
    the table, or all of them if it stores none. None: nothing, because it has them all."""
    if not destination.capabilities.keeps_position:
        return changes
    position = destination.applied(changes.schema)
    assert position is not None, "the position is gone, although the copy was complete"
    upto = changes.span.upto
    assert at_least <= position <= upto, f"{position} was never a position of this table"
    if position == upto:
        return None
    return replace(changes.since(position), span=Span(position, upto))


def _check_no_half_copy(destination: Any, source: Source, check: Callable[[Source], None]) -> None:
    """After an interrupted copy, the table has no position; or, if copies replace the former table
    in one step, that table is unchanged."""
    called = adapted(destination)
    if not called.capabilities.keeps_position:
        return
    found = called.applied(source.schema)
    if isinstance(called, OwnDestination) and not hasattr(destination, "swap_table"):
        assert found is None, f"there is no complete copy, but a position: {found}"
    elif found is not None:
        check(source)


@contextmanager
def _naming_break(place: _Place) -> Iterator[None]:
    """Errors in the block say where the call was broken off."""
    try:
        yield
    except Exception as error:
        error.add_note(f"After {place}.")
        raise


# -- where calls break off ------------------------------------------------------------------------


class _Place:
    """A place in the middle of a call. This one: the position is read after the changes."""

    heals = True
    """Whether the rest is written afterwards, and checked."""

    def __init__(self, *, anew: bool = True) -> None:
        self.anew = anew
        """Whether the table must be copied first."""

    def __str__(self) -> str:
        return "a call that was broken off where it asked for the position, after the changes"

    def copy(self, destination: Any, copied: TableCopy) -> None:
        adapted(destination).copy(copied)

    def apply(self, destination: Any, changes: TableChanges) -> None:
        adapted(destination).apply(changes)

    def strike(self, destination: Any, changes: TableChanges) -> None:
        late = _LateChanges(*(getattr(changes, field.name) for field in fields(changes)))
        self._call(lambda: self.apply(destination, late), lambda: late.struck)

    def strike_copy(self, destination: Any, copied: TableCopy) -> None:
        raise NotImplementedError

    def _call(self, call: Callable[[], object], struck: Callable[[], bool]) -> None:
        try:
            call()
        except Exception:
            # It may be wrapped in an error of the destination's own, or of Spark's.
            return
        assert not struck(), f"nothing was raised by {self}"


class _LateChanges(TableChanges):
    """A span that raises once the rows were read."""

    taken = struck = False

    def __getattribute__(self, name: str) -> Any:
        if name in ("changes", "files", "net"):
            object.__setattr__(self, "taken", True)
        if name == "span" and self.taken:
            object.__setattr__(self, "struck", True)
            raise BrokenOff("the contract's test breaks off where the span is asked for")
        return super().__getattribute__(name)


class _FilePlace(_Place):
    """An unreadable file. Nothing may have been written then. The rest is written only after the
    last of all places, because each of Spark's jobs takes time."""

    heals = False

    def __init__(self, file: str, anew: bool) -> None:
        super().__init__(anew=anew)
        self.file = Path(file)

    def __str__(self) -> str:
        return f"a call that was broken off by {self.file.name}, which could not be read"

    def strike(self, destination: Any, changes: TableChanges) -> None:
        with _unreadable(self.file):
            self._call(lambda: adapted(destination).apply(changes), lambda: True)

    def strike_copy(self, destination: Any, copied: TableCopy) -> None:
        with _unreadable(self.file):
            called = adapted(destination)
            # Others may take the file over as it is, and need not read it.
            self._call(lambda: called.copy(copied), lambda: isinstance(called, OwnDestination))


@contextmanager
def _unreadable(file: Path) -> Iterator[None]:
    """Its footer is intact: it fails only where rows are read."""
    whole = file.read_bytes()
    footer = 8 + int.from_bytes(whole[-8:-4], "little")
    file.write_bytes(whole[:4] + b"\xff" * (len(whole) - footer - 4) + whole[-footer:])
    try:
        yield
    finally:
        file.write_bytes(whole)


class _RowPlace(_Place):
    """A row of the copy or of the changes, before which the iterator raises. Rows come from memory:
    a Spark job for each place would take minutes."""

    def __init__(self, copied: pa.Table, changes: pa.Table, row: int) -> None:
        super().__init__()
        self._copied = copied
        self._changes = changes
        self._row = row
        self._struck = False

    def __str__(self) -> str:
        return f"a call that was broken off before its row {self._row + 1}"

    def copy(self, destination: Any, copied: TableCopy) -> None:
        with self._feeding(destination, self._copied):
            super().copy(destination, copied)

    def apply(self, destination: Any, changes: TableChanges) -> None:
        import pyarrow.compute as pc

        after = int(changes.after)
        left = self._changes.filter(pc.greater_equal(self._changes["_lsn"], after))
        with self._feeding(destination, left):
            super().apply(destination, changes)

    def strike(self, destination: Any, changes: TableChanges) -> None:
        with self._feeding(destination, self._changes, self._row):
            self._call(lambda: adapted(destination).apply(changes), lambda: self._struck)

    def strike_copy(self, destination: Any, copied: TableCopy) -> None:
        with self._feeding(destination, self._copied, self._row):
            self._call(lambda: adapted(destination).copy(copied), lambda: self._struck)

    @contextmanager
    def _feeding(self, destination: Any, rows: pa.Table, at: int | None = None) -> Iterator[None]:
        """The destination gets these rows, but none from this one on."""
        handed = 0

        def batches(frame: object, size: int, **_: object) -> Iterator[pa.RecordBatch]:
            for start in range(0, rows.num_rows, size):
                if start == at and not isinstance(destination, RowwiseDestination):
                    self._strike()
                yield rows.slice(start, size).combine_chunks().to_batches()[0]
            if at is not None and not self._struck:
                self._strike()

        def breaking(call: Callable[..., None]) -> Callable[..., None]:
            def called(table: TableSchema, values: list[Any]) -> None:
                nonlocal handed
                first, handed = handed, handed + len(values)
                if at is not None and at < handed and not self._struck:
                    values = _BreakingList(values, at - first, self._strike)
                call(table, values)

            return called

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("walflow.spark.batches.arrow_batches", batches)
            patch.setattr(destination, "batch_rows", _BATCH_ROWS)
            if isinstance(destination, RowwiseDestination):
                for name in ("insert_rows", "apply_changes"):
                    patch.setattr(destination, name, breaking(getattr(destination, name)))
            yield

    def _strike(self) -> None:
        self._struck = True
        raise BrokenOff(f"the contract's test breaks off before row {self._row + 1}")


class _BreakingList(list[Any]):
    """Can be read up to an element."""

    def __init__(self, elements: Sequence[Any], at: int, strike: Callable[[], None]) -> None:
        super().__init__(elements)
        self._at = at
        self._strike = strike

    def __iter__(self) -> Iterator[Any]:
        for number, element in enumerate(super().__iter__()):
            if number >= self._at:
                self._strike()
            yield element

    def __getitem__(self, index: Any) -> Any:
        wanted = range(len(self))[index]
        if max(wanted, default=-1) >= self._at if isinstance(wanted, range) else wanted >= self._at:
            self._strike()
        return super().__getitem__(index)


def _places(destination: Any, copied: TableCopy, given: TableChanges) -> list[_Place]:
    if not isinstance(destination, ArrowDestination):
        files = given.files
        return [*(_FilePlace(file, anew=file == files[0]) for file in files), _Place(anew=False)]
    from walflow.spark.batches import arrow_batches

    rows = _collected(arrow_batches(copied.rows, 1000))
    changes = _collected(arrow_batches(given.changes, 1000, order=("_lsn", "_seq")))
    return [*_row_places(destination, rows, changes, changes.num_rows), _Place()]


def _places_of_copy(destination: Any, copied: TableCopy) -> list[_Place]:
    if not isinstance(destination, ArrowDestination):
        return [_FilePlace(str(copied.files[0]), anew=False)]
    from walflow.spark.batches import arrow_batches

    rows = _collected(arrow_batches(copied.rows, 1000))
    return _row_places(destination, rows, rows, rows.num_rows)


def _row_places(
    destination: ArrowDestination, copied: pa.Table, changes: pa.Table, rows: int
) -> list[_Place]:
    """Before each row, or batch of rows, and after all of them."""
    step = 1 if isinstance(destination, RowwiseDestination) else _BATCH_ROWS
    return [_RowPlace(copied, changes, row) for row in (*range(0, rows, step), rows)]


def _collected(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_batches(list(batches))


# -- what was not checked -------------------------------------------------------------------------


def tell_unchecked(config: pytest.Config, text: str) -> None:
    """Report at the end of the run, whatever its options are, that something was not checked."""
    plugins = config.pluginmanager
    told = plugins.get_plugin(_Unchecked.__name__)
    if told is None:
        told = _Unchecked()
        plugins.register(told, _Unchecked.__name__)
    told.texts[text] = None


class _Unchecked:
    """A pytest plugin that exists if a contract was not fully checked."""

    def __init__(self) -> None:
        self.texts: dict[str, None] = {}

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("not checked")
        for text in self.texts:
            terminalreporter.write_line(text)
