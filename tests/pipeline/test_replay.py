"""Random tables over all types and random transactions: copy and change log together replay to
what the source says.

``WALFLOW_LONG=1`` tries many more, and new ones each time.
"""

from __future__ import annotations

import os
import random
import string
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as parquet
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.conftest import Database, fresh_database
from tests.pipeline.capturing import LIVE_ONLY, Capture, changes
from tests.pipeline.replaying import Replayer, Value
from tests.source.stream import Row, as_row
from tests.source.test_values_both_ways import AS_PRINTED, EXTENSION_TYPES, HELD, MAKE_TYPES
from walflow.config import TypeSettings
from walflow.model import quote_identifier
from walflow.source.catalog.published_tables import PublishedTable, published_tables
from walflow.source.connection import connect
from walflow.source.copy.range_copy import copy_query, snapshot_session
from walflow.source.copy.ranges import page_ranges, range_query
from walflow.source.copy.snapshot import keep_snapshot
from walflow.source.stream.replication_connection import Replication
from walflow.testing.postgres import EmbeddedPostgres

LONG = bool(os.environ.get("WALFLOW_LONG"))
EXAMPLES = int(os.environ.get("WALFLOW_EXAMPLES", "300" if LONG else "40"))

LITERALS: dict[str, list[str]] = {kind: list(values) for kind, values in AS_PRINTED.items()}
for _case in HELD:
    LITERALS.setdefault(_case.type, []).extend(_case.values)

# Two of these are the same to an index where they are not the same text, or the other way round.
KEYS = (
    *("int2", "int4", "int8", "text", "varchar(10)", "bpchar(5)", "numeric(12,2)", "numeric"),
    *("date", "timestamp", "timestamptz", "uuid", "bytea", "bool", "mood", "int4[]", "text[]"),
    *("inet", "int4range", "interval", "time", "oid", "name", '"char"', "d_cents", "date[]"),
)
LARGE = ("text", "varchar", "bytea", "text[]", "jsonb", "json", "d_notes")

ODD_NAMES = ("plain", "MixedCase", "with space", 'quo"te', "select", "ünïcode", "c6", "c7")


@dataclass(frozen=True, slots=True)
class Table:
    columns: tuple[tuple[str, str], ...]
    """Names and types."""
    key: tuple[str, ...]
    identity: str

    @property
    def may_change(self) -> bool:
        """Whether Postgres takes updates and deletes."""
        return self.identity == "full" or bool(self.key)

    def make(self, name: str) -> list[str]:
        columns = ", ".join(f"{quote_identifier(c)} {kind}" for c, kind in self.columns)
        made = [f"CREATE TABLE {name} ({columns})"]
        key = ", ".join(quote_identifier(column) for column in self.key)
        if self.identity == "index":
            made += [
                *(
                    f"ALTER TABLE {name} ALTER {quote_identifier(column)} SET NOT NULL"
                    for column in self.key
                ),
                f"CREATE UNIQUE INDEX {name}_key ON {name} ({key})",
                f"ALTER TABLE {name} REPLICA IDENTITY USING INDEX {name}_key",
            ]
        elif self.key:
            made.append(f"ALTER TABLE {name} ADD PRIMARY KEY ({key})")
        if self.identity == "full":
            made.append(f"ALTER TABLE {name} REPLICA IDENTITY FULL")
        # Moved out of the row rather than compressed, so that updates leave values out.
        made += [
            f"ALTER TABLE {name} ALTER {quote_identifier(column)} SET STORAGE EXTERNAL"
            for column, kind in self.columns
            if kind in LARGE
        ]
        return made


# A statement: its kind, which row it is about, and new values (column to literal).
Statement = tuple[str, int, dict[str, str | None]]
# "begin" and "rollback"/"release" of savepoints stand between statements.
Transaction = tuple[bool, tuple[Statement, ...]]


def large(kind: str, seed: int) -> str:
    noise = "".join(random.Random(seed).choices(string.ascii_letters, k=4000))
    match kind:
        case "bytea":
            return "\\x" + noise.encode().hex()
        case "text[]":
            return "{" + ",".join([noise[:2000], "NULL", noise[2000:]]) + "}"
        case "jsonb" | "json":
            return f'{{"noise": "{noise}"}}'
        case _:
            return noise


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
RANDOM: dict[str, st.SearchStrategy[str]] = {
    "text": texts,
    "int4": st.integers(-(2**31), 2**31 - 1).map(str),
    "int8": st.integers(-(2**63), 2**63 - 1).map(str),
    "numeric": st.decimals(allow_nan=True, allow_infinity=True)
    .filter(lambda number: not number.is_snan())
    .filter(lambda number: not number.is_finite() or abs(number.adjusted()) < 60)
    .map(lambda number: "NaN" if number.is_nan() else str(number)),
    "numeric(12,2)": st.decimals(-(10**9), 10**9, places=2).map(str),
    "float8": st.floats().map(repr),
    "float4": st.floats(width=32).map(repr),
    "bool": st.booleans().map(str),
    "date": st.dates().map(str),
    "timestamp": st.datetimes().map(str),
    "timestamptz": st.datetimes().map(lambda at: f"{at}+00"),
    "bytea": st.binary(max_size=20).map(lambda data: "\\x" + data.hex()),
    "uuid": st.uuids().map(str),
}


@st.composite
def values(draw: st.DrawFn, kind: str, key: bool) -> str | None:
    choices: list[st.SearchStrategy[str | None]] = [st.sampled_from(LITERALS.get(kind, [""]))]
    if kind in RANDOM:
        choices.append(RANDOM[kind])
    if not key:
        choices.append(st.none())
        if kind in LARGE:
            choices += [st.integers(0, 5).map(lambda seed: large(kind, seed))] * 3
    return draw(st.one_of(choices))


@st.composite
def tables(draw: st.DrawFn, kinds: Sequence[str]) -> Table:
    names = draw(st.permutations(ODD_NAMES))
    identity = draw(st.sampled_from(["default", "index", "full", "full", "none"]))
    wanted = 0 if identity == "none" else draw(st.integers(1, 2))
    if identity == "full":
        wanted = draw(st.integers(0, 1))
    key_kinds = draw(st.lists(st.sampled_from(KEYS), min_size=wanted, max_size=wanted))
    others = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=5))
    if draw(st.booleans()):
        others[0] = draw(st.sampled_from(LARGE))
    columns = list(zip(names, [*key_kinds, *others], strict=False))
    key = tuple(name for name, _ in columns[:wanted])
    return Table(tuple(draw(st.permutations(columns))), key, identity)


@st.composite
def statements(draw: st.DrawFn, table: Table, kinds: Sequence[str]) -> Statement:
    kind = draw(st.sampled_from(kinds))
    chosen = list(table.columns)
    if kind == "update":
        chosen = draw(st.lists(st.sampled_from(chosen), min_size=1, max_size=3, unique=True))
    new: dict[str, str | None] = {}
    if kind in ("insert", "update"):
        new = {name: draw(values(type_, name in table.key)) for name, type_ in chosen}
    return kind, draw(st.integers(0, 4)), new


def transactions(table: Table) -> st.SearchStrategy[Transaction]:
    kinds = ["insert"] * 6 + ["truncate", "begin", "begin", "release", "rollback"]
    if table.may_change:
        kinds = ["update"] * 8 + ["delete"] * 2 + kinds
    listed = st.lists(statements(table, kinds), min_size=2, max_size=7).map(tuple)
    return st.tuples(st.integers(0, 9).map(lambda number: number != 9), listed)


@st.composite
def stories(draw: st.DrawFn, kinds: Sequence[str]) -> tuple[Table, Transaction, list[Transaction]]:
    """A table, the rows it begins with, and what happens to it then."""
    table = draw(tables(kinds))
    first = draw(st.lists(statements(table, ["insert"]), min_size=2, max_size=6))
    story = draw(st.lists(transactions(table), min_size=4, max_size=9))
    return table, (True, tuple(first)), story


class Writer:
    """Carries out statements; what a constraint forbids is undone and forgotten."""

    def __init__(self, connection: psycopg.Connection[Any], name: str, table: Table) -> None:
        self._connection = connection
        self._name = name
        self._types = dict(table.columns)

    def run(self, transaction: Transaction, *, truncates: bool = True) -> None:
        committed, listed = transaction
        points: list[str] = []
        with self._connection.transaction(force_rollback=not committed):
            for number, (kind, row, new) in enumerate(listed):
                if kind == "begin":
                    points.append(f"s{number}")
                    self._connection.execute(f"SAVEPOINT {points[-1]}")
                elif kind in ("release", "rollback"):
                    if points:
                        to = "RELEASE" if kind == "release" else "ROLLBACK TO"
                        self._connection.execute(f"{to} {points.pop()}")
                elif kind != "truncate" or truncates:
                    self._try(kind, row, new)

    def _try(self, kind: str, row: int, new: dict[str, str | None]) -> None:
        try:
            with self._connection.transaction():
                self._connection.execute(*self._statement(kind, row, new))
        except (psycopg.errors.IntegrityError, psycopg.errors.ProgramLimitExceeded):
            pass

    def _statement(
        self, kind: str, row: int, new: dict[str, str | None]
    ) -> tuple[str, list[str | None]]:
        where = f"ctid = (SELECT ctid FROM {self._name} ORDER BY ctid LIMIT 1 OFFSET {row})"
        parameters = list(new.values())
        if kind == "insert":
            cast = ", ".join(f"%s::text::{self._types[column]}" for column in new)
            names = ", ".join(quote_identifier(column) for column in new)
            return f"INSERT INTO {self._name} ({names}) VALUES ({cast})", parameters
        if kind == "update":
            sets = ", ".join(
                f"{quote_identifier(column)} = %s::text::{self._types[column]}" for column in new
            )
            return f"UPDATE {self._name} SET {sets} WHERE {where}", parameters
        if kind == "delete":
            return f"DELETE FROM {self._name} WHERE {where}", []
        return f"TRUNCATE {self._name}", []


@pytest.fixture(scope="module")
def playground(postgres: EmbeddedPostgres) -> Iterator[Database]:
    for database in fresh_database(postgres):
        database.execute(*MAKE_TYPES, "CREATE DOMAIN d_notes AS text")
        yield database


@pytest.fixture(scope="module")
def kinds(playground: Database) -> list[str]:
    """Every type that this server has."""
    found = [*LITERALS, "d_notes", "varchar"]
    with playground.connect() as connection:
        for extension, (kind, literals) in EXTENSION_TYPES.items():
            try:
                connection.execute(f"CREATE EXTENSION {extension}")
            except psycopg.Error:
                continue  # not on this machine
            LITERALS[kind] = literals
            found.append(kind)
        try:
            connection.execute("SELECT '<a/>'::text::xml")
        except psycopg.errors.FeatureNotSupported:
            found.remove("xml")
    return found


@pytest.mark.timeout(7200 if LONG else 300)
@given(data=st.data())
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not LONG,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
def test_copy_and_log_replay_to_the_source(
    playground: Database, kinds: list[str], data: st.DataObject
) -> None:
    table, first, story = data.draw(stories(kinds))
    number = next(_numbers)
    name, slot, publication = f"t{number}", f"slot_{playground.name}_{number}", f"p{number}"
    note(f"{table.make(name)}")
    with tempfile.TemporaryDirectory() as folder, playground.connect() as connection:
        playground.execute(*table.make(name), f"CREATE PUBLICATION {publication} FOR TABLE {name}")
        writer = Writer(connection, name, table)
        writer.run(first)
        try:
            replay(playground, Path(folder), name, slot, publication, writer, story)
        finally:
            playground.execute(
                f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                f" WHERE slot_name = '{slot}'",
                f"DROP PUBLICATION {publication}",
                f"DROP TABLE {name}",
            )


_numbers = iter(range(1, 10**9))
seen: Counter[str] = Counter()


def test_the_stories_were_worth_telling() -> None:
    """Each way in which a replay can go wrong was there to go wrong."""
    if not seen:
        pytest.skip("the test above did not run: choose the whole file")
    print(dict(seen))
    # Which stories are told depends on the types that the server has, so no more can be asked.
    kinds = ("insert", "update", "delete", "truncate", "_old", "_unchanged", "_exact", "copied")
    assert all(seen[kind] for kind in kinds), seen


def replay(
    database: Database,
    folder: Path,
    name: str,
    slot: str,
    publication: str,
    writer: Writer,
    story: list[Transaction],
) -> None:
    half = len(story) // 2
    with Replication(database.uri, application_name="test") as replication:
        created = replication.create_slot(slot)
        with keep_snapshot(database.uri, created.snapshot) as keeper:
            # What happens between the snapshot and the copy must not be in the copy. (A truncate
            # would be: the pipeline then copies again.)
            for transaction in story[:half]:
                writer.run(transaction, truncates=False)
            with connect(database.uri, application_name="test") as session:
                (published,) = published_tables(session, publication, TypeSettings())
            copied = copy(database, published, keeper.name, folder / "copy")
    with Capture(
        database.uri,
        folder / "log",
        slot=slot,
        publication=publication,
        backlog_bytes=LIVE_ONLY if half % 2 else 0,
        fill_seconds=0.01,
    ) as capture:
        for transaction in story[half:]:
            writer.run(transaction)
        capture.catch_up()
        found = changes(capture.log)
    replayer = Replayer(published.schema, copied)
    assert len(found) <= 1
    for schema, row in next(iter(found.values()), []):
        assert schema.same_schema(published.schema)
        replayer.replay([row])
        seen.update([row["_change_type"], *(c for c in ("_old", "_unchanged", "_exact") if row[c])])
    seen["copied"] += len(copied)
    with Replication(database.uri, application_name="test") as replication:
        last = replication.create_slot(f"{slot}_end", temporary=True)
        final = copy(database, published, last.snapshot, folder / "final")
    assert replayer.rows == Replayer(published.schema, final).rows
    assert_texts(database, name, published, replayer.rows)


def copy(database: Database, table: PublishedTable, snapshot: str, folder: Path) -> list[Row]:
    folder.mkdir()
    rows: list[Row] = []
    with snapshot_session(
        database.uri, snapshot, application_name="test", lock_seconds=60
    ) as session:
        # Ranges of one page, so that there are several.
        for number, piece in enumerate(page_ranges(table, 8192)):
            path = folder / f"{number}.parquet"
            if copy_query(session, range_query(table, piece), table.schema, path) is not None:
                rows += [as_row(row) for row in parquet.read_table(path).to_pylist()]
    return rows


_INDEPENDENT: dict[str, Any] = {
    "string": str,
    "int": int,
    "bigint": int,
    "boolean": lambda text: text == "t",
    "binary": lambda text: bytes.fromhex(text[2:]),
}


def assert_texts(
    database: Database, name: str, table: PublishedTable, rows: Counter[tuple[Value, ...]]
) -> None:
    """Where the text says the value, or where an exact text is given, it is what Postgres says."""
    columns = table.schema.columns
    selected = ", ".join(f"{quote_identifier(column.name)}" for column in columns)
    with connect(database.uri, application_name="test") as session:
        result = session.pgconn.exec_(f"SELECT {selected} FROM {name}".encode())
        theirs: Counter[tuple[object, ...]] = Counter()
        for row in range(result.ntuples):
            cells = []
            for place, column in enumerate(columns):
                raw = result.get_value(row, place)
                cells.append(None if raw is None else _expected(column.spark_type, raw))
            theirs[tuple(cells)] += 1
    ours: Counter[tuple[object, ...]] = Counter()
    for values_, count in rows.items():
        cells = [
            _told(column.spark_type, value, overflow)
            for column, (value, overflow) in zip(columns, values_, strict=True)
        ]
        ours[tuple(cells)] += count
    assert ours == theirs


def _expected(spark: str, raw: bytes) -> object:
    if spark.startswith("decimal"):
        number = Decimal(raw.decode())
        return "NaN" if number.is_nan() else number
    if spark in _INDEPENDENT:
        return _INDEPENDENT[spark](raw.decode("utf-8", "backslashreplace"))
    return "not compared here"


def _told(spark: str, value: object, overflow: str | None) -> object:
    if value is None and overflow is None:
        return None
    if spark.startswith("decimal"):
        number = Decimal(overflow) if overflow is not None else value
        return "NaN" if isinstance(number, Decimal) and number.is_nan() else number
    return value if spark in _INDEPENDENT else "not compared here"
