"""What ``walflow as-of`` needs of the consistent cuts, noted on this machine beside the change log.

The cuts are in the lake, which only Spark reads. This file has them with their queries, so that
no Spark is needed to answer. It is only a note: where it is missing, damaged, of another lake, or
uncertain, the lake is asked.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from walflow.destinations.base import ConsistentCut
from walflow.destinations.lake.consistent_cuts import AsOf, RecordedCut, RecordedTable
from walflow.model import Lsn, TableName
from walflow.paths import is_there

__all__ = ["NotedCuts", "noted_as_of"]

_TABLES = """
CREATE TABLE place (name TEXT);
CREATE TABLE cut (
  id INTEGER PRIMARY KEY, lsn INT, since INT, commit_time INT, recorded_at INT, kept_until INT);
CREATE TABLE version (
  source TEXT, destination TEXT, snapshot INT, position INT, query TEXT,
  doubtful INT DEFAULT 0, first INT, last INT);
CREATE INDEX version_last ON version (last);
"""
"""A version belongs to the cuts from ``first`` to ``last`` (NULL: the newest): most tables have the
same version in the next cut."""

_Key = tuple[str, str, int, int, str]


class NotedCuts:
    """Calls may come from several threads. Nothing that goes wrong here reaches the caller: the
    file is given up then."""

    def __init__(self, file: Path, place: str) -> None:
        """``place`` says which lake it is about: cuts of another one are forgotten."""
        self._file = file
        self._place = place
        self._lock = threading.Lock()
        self._is_ours = False

    def record(
        self, cut: ConsistentCut, tables: Mapping[RecordedTable, str], now: float, until: float
    ) -> None:
        """Note the cut, with each table's query."""
        self._write(lambda file: _record(file, cut, tables, now, until))

    def doubt(self, name: TableName) -> None:
        """What was noted of the table may no longer be there to be read."""
        if is_there(self._file):
            self._write(lambda file: file.execute(_DOUBT, [str(name)]))

    def tidy(self) -> None:
        """Forget the cuts that are no longer kept."""
        self._write(_tidy)

    def _write(self, write: Callable[[sqlite3.Connection], object]) -> None:
        with self._lock:
            try:
                with closing(sqlite3.connect(self._file, timeout=5)) as file:
                    # A note may be lost with the machine, and then it is made anew.
                    file.execute("PRAGMA synchronous = OFF")
                    with file:
                        self._make(file)
                        write(file)
            except (sqlite3.Error, OSError):
                # A half-written cut would be taken for the newest.
                self._is_ours = False
                with contextlib.suppress(OSError):
                    self._file.unlink(missing_ok=True)

    def _make(self, file: sqlite3.Connection) -> None:
        if self._is_ours:
            return
        names = [name for (name,) in file.execute("SELECT name FROM sqlite_master")]
        if "place" in names and not _is_of(file, self._place):
            for table in ("place", "cut", "version"):
                file.execute(f"DROP TABLE IF EXISTS {table}")
            names = []
        if "place" not in names:
            for statement in _TABLES.split(";"):
                file.execute(statement)
            file.execute("INSERT INTO place VALUES (?)", [self._place])
        self._is_ours = True


_DOUBT = "UPDATE version SET doubtful = 1 WHERE destination = ?"


def _is_of(file: sqlite3.Connection, place: str) -> bool:
    return bool(file.execute("SELECT name FROM place").fetchall() == [(place,)])


def _record(
    file: sqlite3.Connection,
    cut: ConsistentCut,
    tables: Mapping[RecordedTable, str],
    now: float,
    until: float,
) -> None:
    (number,) = file.execute(
        "INSERT INTO cut (lsn, since, commit_time, recorded_at, kept_until)"
        " VALUES (?, ?, ?, ?, ?) RETURNING id",
        (
            int(cut.upto),
            int(cut.since),
            cut.commit_time,
            _micros(now),
            _micros(until),
        ),
    ).fetchone()
    missing: set[_Key] = {
        (str(one.source), str(one.table), one.version, int(one.position), query)
        for one, query in tables.items()
    }
    current = file.execute(
        "SELECT rowid, doubtful, source, destination, snapshot, position, query"
        " FROM version WHERE last IS NULL"
    ).fetchall()
    for rowid, doubtful, *key in current:
        if not doubtful and tuple(key) in missing:
            missing.remove(tuple(key))
        else:
            file.execute("UPDATE version SET last = ? WHERE rowid = ?", (number - 1, rowid))
    file.executemany(
        "INSERT INTO version (source, destination, snapshot, position, query, first)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        [(*key, number) for key in missing],
    )


def _tidy(file: sqlite3.Connection) -> None:
    file.execute(
        "DELETE FROM cut WHERE kept_until <= ? AND id < (SELECT max(id) FROM cut)",
        [_micros(time.time())],
    )
    file.execute("DELETE FROM version WHERE last < (SELECT min(id) FROM cut)")


def noted_as_of(
    file: Path, place: str, position: Lsn | None = None, moment: datetime | None = None
) -> AsOf | None:
    """The newest noted cut, or the newest one up to the position or the time; None: none is noted.
    A query is None if it is doubtful."""
    if not is_there(file):
        return None
    try:
        # Not to be made by who only looks; and it may be on a disk that is full.
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as opened:
            return _newest(opened, place, position, moment)
    except (sqlite3.Error, OSError):
        return None


def _newest(
    file: sqlite3.Connection, place: str, position: Lsn | None, moment: datetime | None
) -> AsOf | None:
    if not _is_of(file, place):
        return None
    conditions = ["(kept_until > ? OR id = (SELECT max(id) FROM cut))"]
    values = [_micros(time.time())]
    if position is not None:
        conditions.append("since <= ?")
        values.append(int(position))
    if moment is not None:
        conditions.append("coalesce(commit_time, recorded_at) <= ?")
        values.append(_micros(moment.timestamp()))
    found = file.execute(
        "SELECT id, lsn, since, commit_time, recorded_at FROM cut"
        f" WHERE {' AND '.join(conditions)} ORDER BY lsn DESC, recorded_at DESC LIMIT 1",
        values,
    ).fetchone()
    if found is None:
        return None
    number, lsn, since, commit_time, recorded = found
    rows = file.execute(
        "SELECT source, destination, snapshot, position, query, doubtful FROM version"
        " WHERE first <= ? AND (last IS NULL OR last >= ?) ORDER BY source",
        [number, number],
    ).fetchall()
    return AsOf(
        RecordedCut(
            Lsn(since),
            Lsn(lsn),
            None if commit_time is None else _moment(commit_time),
            _moment(recorded),
            tuple(
                RecordedTable(TableName.parse(source), TableName.parse(table), version, Lsn(upto))
                for source, table, version, upto, _, _ in rows
            ),
        ),
        tuple(_queries(rows)),
    )


def _queries(rows: Sequence[tuple[object, ...]]) -> Iterable[str | None]:
    for *_, query, doubtful in rows:
        yield None if doubtful else str(query)


def _micros(seconds: float) -> int:
    return round(seconds * 1e6)


def _moment(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / 1e6, UTC)
