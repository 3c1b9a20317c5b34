"""What executors do for a copy: read ranges of pages, and update what was read before."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather as feather

from walflow.changelog import FinishedRange, store_range
from walflow.changelog.durable import disk_errors
from walflow.checksums import damage_of
from walflow.errors import WalflowError
from walflow.model import CopyFile, Lsn, PageRange
from walflow.serialization import from_json, to_json
from walflow.source.catalog.published_tables import PublishedTable
from walflow.source.connection import Session, source_errors
from walflow.source.copy.key_reads import (
    KEYS_A_QUERY,
    identities,
    keyed_queries,
    texts_of_rows,
)
from walflow.source.copy.range_copy import (
    check_name,
    copy_queries,
    copy_query,
    filter_file,
    snapshot_session,
)
from walflow.source.copy.ranges import range_query

__all__ = [
    "RESULT_SCHEMA",
    "CopySource",
    "CopyUpdateTask",
    "FileCheckTask",
    "RangeCopyTask",
    "copied_rows",
    "read_keys",
    "result_of",
    "store_keys",
]

RESULT_SCHEMA = "number bigint, file binary, error binary"
"""What executors yield, as Spark DDL: the number of a range that is done and the file with its
rows (a CopyFile as JSON), if there are any; or a pickled error."""


@dataclass(frozen=True, slots=True)
class CopySource:
    """What is read, and where it goes."""

    uri: str = field(repr=False)
    snapshot: str
    application_name: str
    table: PublishedTable
    folder: str
    plan: str
    position: Lsn
    """The snapshot's."""
    lock_seconds: float
    """How long to wait for a table that is locked."""

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A session that sees the snapshot."""
        with (
            source_errors(f"copy {self.table.name}"),
            snapshot_session(
                self.uri,
                self.snapshot,
                application_name=self.application_name,
                lock_seconds=self.lock_seconds,
            ) as session,
        ):
            yield session

    def path(self, name: str) -> Path:
        """Where a file of these rows goes: no other attempt uses its name."""
        return Path(self.folder) / f"{name}-{self.plan}-{self.position:x}.parquet"


@dataclass(frozen=True, slots=True)
class RangeCopyTask:
    """Copies the ranges of its share, one session for all of them.

    Called by Spark with batches that name the shares (``id``). Errors are yielded, not raised,
    because Spark would keep only their text.
    """

    source: CopySource
    shares: tuple[tuple[tuple[int, PageRange], ...], ...]
    """For each share: its ranges, with their numbers."""
    noted: bool = True
    """Whether to note that a range is done, for a copy that goes on after a crash."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        folder = Path(self.source.folder)
        for batch in batches:
            for share in batch.column("id").to_pylist():
                with _Caught(folder) as caught, self.source.session() as session:
                    for number, pages in self.shares[share]:
                        yield self._read(session, number, pages)
                yield from caught.results

    def _read(self, session: Session, number: int, pages: PageRange) -> pa.RecordBatch:
        source = self.source
        folder = Path(source.folder)
        file = copy_query(
            session,
            range_query(source.table, pages),
            source.table.schema,
            source.path(f"{number:06}"),
            progress=_Progress(folder / f"{number:06}.rows"),
        )
        check_name(session, source.table.relation(pages.relation).name, pages.relation)
        if self.noted:
            store_range(folder, FinishedRange(source.plan, number, source.position, file))
        return _result(number, file)


@dataclass(frozen=True, slots=True)
class CopyUpdateTask:
    """Brings what older snapshots saw to the state of this one.

    Rows with touched keys go out of the older files, and come again by their keys, from the pages
    that those files are of. Called as RangeCopyTask is. A number below zero: rows by key.
    """

    source: CopySource
    keys: str
    """The file of touched keys."""
    pages: tuple[PageRange, ...]
    files: tuple[tuple[int, str], ...]
    """The older files, with the numbers of their ranges."""
    shares: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for share in batch.column("id").to_pylist():
                with _Caught(Path(self.source.folder)) as caught:
                    texts = read_keys(self.keys)
                    touched = identities(texts)
                    for number, name in self.files[share :: self.shares]:
                        yield _result(number, self._without(touched, number, name))
                    yield _result(-1 - share, self._by_key(texts, share))
                yield from caught.results

    def _without(self, touched: pa.StringArray, number: int, name: str) -> CopyFile | None:
        columns = self.source.table.schema.key_columns

        def untouched(rows: pa.Table) -> pa.Array:
            mine = identities(texts_of_rows(columns, rows))
            return pc.invert(pc.is_in(mine, value_set=touched))

        return filter_file(
            Path(self.source.folder) / name,
            self.source.path(f"{number:06}-untouched"),
            untouched,
            [*(column.name for column in columns), "_exact"],
        )

    def _by_key(self, texts: Sequence[pa.StringArray], share: int) -> CopyFile | None:
        source, columns = self.source, self.source.table.schema.key_columns
        first, end = (len(texts[0]) * place // self.shares for place in (share, share + 1))
        texts = [text.slice(first, end - first) for text in texts]
        if not len(texts[0]):
            return None
        asked = current = identities(texts)

        def queries() -> Iterator[str]:
            nonlocal current
            for start, query in keyed_queries(source.table, texts, self.pages):
                current = asked.slice(start, KEYS_A_QUERY)
                yield query

        def keep(rows: pa.RecordBatch) -> pa.RecordBatch:
            # A row that another text of its key found is left to the query with its own text.
            mine = identities(texts_of_rows(columns, rows))
            return rows.filter(pc.is_in(mine, value_set=current))

        with source.session() as session:
            # The key has an index; a server without statistics might not use it.
            session.execute("SET enable_seqscan = off; SET enable_tidscan = off; SET jit = off")
            file = copy_queries(
                session,
                queries(),
                source.table.schema,
                source.path(f"keyed-{share:06}"),
                keep=keep,
            )
            check_name(session, source.table.name, source.table.schema.oid)
            return file


class _Caught:
    """Turns errors inside into results."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.results: list[pa.RecordBatch] = []

    def __enter__(self) -> _Caught:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        try:
            with disk_errors(self._folder):
                if isinstance(error, OSError | WalflowError):
                    raise error
        except WalflowError as caught:
            self.results.append(_result(0, None, caught))
            return True
        return False


def _result(
    number: int, file: CopyFile | None, error: WalflowError | None = None
) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "number": pa.array([number], pa.int64()),
            "file": pa.array([file and to_json(file)], pa.binary()),
            "error": pa.array([error and pickle.dumps(error)], pa.binary()),
        }
    )


def result_of(row: Mapping[str, Any]) -> tuple[int, CopyFile | None]:
    """The range that a row of results is of, and its file; raises the error that it carries."""
    if row["error"] is not None:
        error = pickle.loads(row["error"])  # noqa: S301 - our own executors made it
        assert isinstance(error, WalflowError)
        raise error
    return row["number"], None if row["file"] is None else from_json(CopyFile, bytes(row["file"]))


@dataclass(frozen=True, slots=True)
class FileCheckTask:
    """Looks whether a copy's files are as they were written. Called as RangeCopyTask is; yields the
    numbers of those that are not."""

    folder: str
    files: tuple[CopyFile, ...]
    shares: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for share in batch.column("id").to_pylist():
                mine = range(share, len(self.files), self.shares)
                damaged = [number for number in mine if self._is_damaged(self.files[number])]
                yield pa.RecordBatch.from_pydict({"number": pa.array(damaged, pa.int64())})

    def _is_damaged(self, file: CopyFile) -> bool:
        path = Path(self.folder) / file.name
        return damage_of(path, file.bytes, file.checksum) is not None


def store_keys(path: Path, texts: Sequence[pa.StringArray]) -> None:
    """Leave touched keys for the executors."""
    table = pa.table(list(texts), names=[str(number) for number in range(len(texts))])
    feather.write_feather(table, path, compression="uncompressed")


def read_keys(path: str) -> list[pa.StringArray]:
    table = feather.read_table(path, memory_map=True)
    return [column.combine_chunks() for column in table.columns]


@dataclass(frozen=True, slots=True)
class _Progress:
    """Tells the driver how far a range is, through a small file beside the data."""

    path: Path

    def __call__(self, rows: int) -> None:
        self.path.write_text(str(rows))


def copied_rows(folder: Path, numbers: Iterable[int]) -> int:
    """How many rows the executors have read of these ranges so far."""
    total = 0
    for number in numbers:
        with contextlib.suppress(ValueError, FileNotFoundError):  # being written just now
            total += int((folder / f"{number:06}.rows").read_text())
    return total
