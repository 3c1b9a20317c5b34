"""The way from one schema of a table to another, and where there is none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import pyarrow.compute as pc
import pytest

from tests.conftest import Database
from walflow.config import TypeSettings
from walflow.evolution import Evolution, NotFollowed, evolution
from walflow.model import Column, PgType, ReplicaIdentity, TableName, TableSchema
from walflow.source.catalog.attributes import missing_array
from walflow.source.catalog.published_tables import published_tables
from walflow.source.connection import connect

INT = PgType("integer", 23, 23)
BIGINT = PgType("bigint", 20, 20)
TEXT = PgType("text", 25, 25)
SPARK = {INT.oid: "int", BIGINT.oid: "bigint", TEXT.oid: "string"}

FILES = frozenset({100})


def column(number: int, name: str, type_: PgType = TEXT, **more: object) -> Column:
    made = Column(name, type_, SPARK[type_.oid], attnum=number)
    return replace(made, **more)  # type: ignore[arg-type]


def schema(*columns: Column, key: tuple[str, ...] = ("id",), **more: object) -> TableSchema:
    made = TableSchema(7, TableName("s", "t"), columns, key, filenodes=FILES)
    return replace(made, **more)  # type: ignore[arg-type]


ID, A, B = column(1, "id", INT), column(2, "a"), column(3, "b")


def way(before: TableSchema, after: TableSchema, *, trust: bool = False) -> Evolution:
    return evolution(before, after, trust_rewrites=trust)


def refused(before: TableSchema, after: TableSchema, *, trust: bool = False) -> str:
    with pytest.raises(NotFollowed) as raised:
        way(before, after, trust=trust)
    return raised.value.reason


def test_a_form_leads_to_itself_under_any_name() -> None:
    before = schema(ID, A)
    same = way(before, replace(before, name=TableName("s", "renamed"), filenodes=frozenset({5})))
    assert not same.changes_columns
    assert not same.key_changed
    with pytest.raises(ValueError, match="are two"):
        way(before, replace(before, oid=8))


def test_numbers_settle_what_became_of_columns() -> None:
    swapped = way(schema(ID, A, B), schema(ID, replace(A, name="b"), replace(B, name="a")))
    assert swapped.renamed == ((A, replace(A, name="b")), (B, replace(B, name="a")))
    assert not swapped.added
    assert not swapped.dropped

    anew = column(4, "b", INT)
    remade = way(schema(ID, A, B), schema(ID, A, anew))
    assert remade.dropped == (B,)
    assert remade.added == (anew,)
    assert not remade.renamed
    assert remade.changes_columns

    # Over several schemas at once.
    story = way(schema(ID, A, B), schema(ID, replace(B, name="a"), column(5, "b")))
    assert story.dropped == (A,)
    assert story.renamed == ((B, replace(B, name="a")),)
    assert [c.attnum for c in story.added] == [5]


def test_what_is_in_an_added_column_must_be_known() -> None:
    new = column(3, "b")
    before = schema(ID, A)
    grown = frozenset({100, 200})
    assert way(before, schema(ID, A, new)).added == (new,)
    assert way(before, schema(ID, A, new, filenodes=grown)).added == (new,)
    for filenodes in (frozenset({200}), frozenset[int]()):
        assert "column b was added" in refused(before, schema(ID, A, new, filenodes=filenodes))
    assert "column b was added" in refused(
        replace(before, filenodes=frozenset()), schema(ID, A, new)
    )

    filled = replace(new, missing="x")
    assert way(before, schema(ID, A, filled, filenodes=frozenset({200}))).added == (filled,)
    assert way(replace(before, filenodes=frozenset()), schema(ID, A, filled)).added == (filled,)
    unknown = replace(filled, missing_known=False)
    assert "is not known what rows" in refused(before, schema(ID, A, unknown))


def test_a_column_that_was_merely_not_published_is_not_added() -> None:
    assert "not published" in refused(schema(ID, B), schema(ID, A, B))
    assert "not published" in refused(schema(ID, A, newest=3), schema(ID, A, B))


def test_columns_without_a_number_cannot_be_followed() -> None:
    lost = replace(A, attnum=0)
    assert refused(schema(ID, lost), schema(ID, A)) == "it is not known which column a is"
    assert refused(schema(ID, A), schema(ID, lost)) == "it is not known which column a is"


def test_keys_are_compared_by_number() -> None:
    before = schema(ID, A, B)
    assert not way(before, schema(ID, A, B, replica_identity=ReplicaIdentity.FULL)).key_changed
    assert not way(before, schema(replace(ID, name="no"), A, B, key=("no",))).key_changed
    wide = column(1, "id", BIGINT)
    assert not way(before, schema(wide, A, B), trust=True).key_changed
    assert way(before, schema(ID, A, B, key=("id", "a"))).key_changed
    assert way(before, schema(ID, A, B, key=("a",))).key_changed
    assert way(before, schema(ID, A, B, key=())).key_changed
    assert way(schema(ID, A, B, key=()), before).key_changed
    assert not way(schema(ID, key=()), schema(ID, A, key=())).key_changed
    swapped = schema(replace(ID, name="a"), replace(A, name="id"), B)
    assert way(before, swapped).key_changed


def test_a_key_that_the_stream_does_not_tell_is_not_followed() -> None:
    whole = schema(ID, A, key=(), replica_identity=ReplicaIdentity.FULL)
    assert "its key has changed" in refused(whole, replace(whole, key=("id",)))
    assert "its key has changed" in refused(replace(whole, key=("a",)), replace(whole, key=("id",)))
    assert way(replace(whole, key=("id",)), whole).key_changed


def test_rewrites_are_followed_if_they_are_trusted() -> None:
    before, after = schema(ID, A), schema(column(1, "number", BIGINT), A, key=("number",))
    reason = refused(before, replace(after, filenodes=frozenset({200})))
    assert "column number changed from integer to bigint" in reason
    trusted = way(before, replace(after, filenodes=frozenset({200})), trust=True)
    assert trusted.widened == trusted.renamed == ((ID, after.columns[0]),)
    assert "from bigint to integer" in refused(after, before, trust=True)
    assert "from integer to text" in refused(before, schema(column(1, "id", TEXT), A), trust=True)


def test_a_renamed_type_is_the_same_one() -> None:
    other = replace(A, type=replace(TEXT, name="texts"))
    assert not way(schema(ID, A), schema(ID, other, filenodes=frozenset({200}))).changes_columns


def test_another_setting_of_types_is_not_followed() -> None:
    numeric = PgType("numeric", 1700, 1700)
    before = replace(A, type=numeric, spark_type="decimal(10,2)")
    after = replace(before, spark_type="decimal(38,2)")
    assert refused(schema(before), schema(after), trust=True).endswith("and was decimal(10,2)")


Outcome = Literal["same", "wider", "refused"]


@dataclass(frozen=True)
class Change:
    """ALTER COLUMN … TYPE on a real server: whether it rewrites the table, and what we make of it
    without and with trust."""

    old: str
    new: str
    value: str
    rewrites: bool
    plain: Outcome
    trusted: Outcome


def kept(old: str, new: str, value: str, plain: Outcome, trusted: Outcome | None = None) -> Change:
    return Change(old, new, value, False, plain, trusted or plain)


def rewritten(old: str, new: str, value: str, trusted: Outcome = "refused") -> Change:
    return Change(old, new, value, True, "refused", trusted)


CHANGES = (
    kept("varchar(5)", "varchar(9)", "it ", "same"),
    kept("varchar(5)", "varchar", "it ", "same"),
    kept("varchar(5)", "text", "it ", "same"),
    kept("text", "varchar", "it ", "same"),
    kept("text", "texts", "it ", "same"),
    kept("texts", "text", "it ", "same"),
    kept("checked", "text", "it ", "same"),
    kept("varchar(5)", "texts", "it ", "same"),
    kept("char(5)", "bpchar", "it", "same"),
    kept("numeric(8,2)", "numeric(10,2)", "-1.50", "wider"),
    kept("numeric(8,2)", "numeric", "1.50", "refused"),
    kept("timestamp(3)", "timestamp", "2026-01-02 03:04:05.678", "same"),
    kept("timestamptz(3)", "timestamptz(5)", "2026-01-02 03:04:05.678+02", "same"),
    kept("timestamptz(3)[]", "timestamptz[]", "{2026-01-02 03:04:05.678+02}", "same"),
    kept("time(3)", "time", "03:04:05.678", "same"),
    kept("interval day to second", "interval", "1 day 2:03:04", "same"),
    kept("interval year", "interval month", "2 years", "same"),
    kept("varbit(3)", "varbit(8)", "101", "same"),
    kept("bit(3)", "varbit", "101", "same"),
    kept("int", "ints", "7", "same"),
    # The same bytes, and another text or number.
    kept("cidr", "inet", "10.0.0.1/32", "refused"),
    kept("int", "oid", "-1", "refused"),
    kept("oid", "regclass", "1259", "refused"),
    kept("timestamptz", "timestamp", "2026-01-02 03:04:05+00", "refused"),
    rewritten("smallint", "int", "-7", "same"),
    rewritten("smallint", "bigint", "-7", "wider"),
    rewritten("int", "bigint", "-7", "wider"),
    rewritten("int", "bigints", "-7", "wider"),
    rewritten("real", "float8", "0.1", "wider"),
    rewritten("name", "text", "it ", "same"),
    rewritten("uuid", "text", "6f1c1f52-5b1f-4b1e-8a43-1d3b7f5e7d11", "same"),
    rewritten("json", "text", '{"a":  1}', "same"),
    rewritten("jsonb", "varchar", '{"a":  1}', "same"),
    rewritten("text", "checked", "it ", "same"),
    rewritten("varchar(5)[]", "text[]", "{it }", "same"),
    rewritten("varchar(9)", "varchar(5)", "it     "),
    rewritten("text", "varchar(5)", "it     "),
    rewritten("char(5)", "char(9)", "it"),
    rewritten("char(5)", "text", "it"),
    rewritten("text", "char(5)", "it"),
    rewritten("numeric(8,2)", "numeric(8,3)", "1.50"),
    rewritten("numeric(40,4)", "numeric(40,2)", "1.5050"),
    rewritten("numeric(8,2)", "numeric(6,2)", "1.50"),
    rewritten("numeric", "numeric(8,2)", "1.505"),
    rewritten("timestamp", "timestamp(3)", "2026-01-02 03:04:05.678901"),
    rewritten("time", "time(3)", "03:04:05.678901"),
    rewritten("interval", "interval day", "1 day 2:03:04"),
    rewritten("bigint", "int", "7"),
    rewritten("float8", "real", "0.1"),
    rewritten("int", "text", "7"),
    rewritten("int", "numeric(20,0)", "7"),
    rewritten("bigint", "float8", "7"),
    rewritten("json", "jsonb", '{"a":  1}'),
    rewritten("date", "timestamp", "2026-01-02"),
    rewritten("int[]", "bigint[]", "{1,2}"),
    rewritten("inet", "text", "10.0.0.1"),
    rewritten("bool", "text", "t"),
)


def looked_at(database: Database) -> dict[str, TableSchema]:
    with connect(database.uri, application_name="walflow test") as connection:
        found = published_tables(connection, "walflow", TypeSettings())
    return {table.name.name: table.schema for table in found}


def outcome(before: TableSchema, after: TableSchema, *, trust: bool) -> Outcome:
    try:
        found = way(before, after, trust=trust)
    except NotFollowed:
        return "refused"
    return "wider" if found.widened else "same"


def test_types_as_postgres_changes_them(any_database: Database) -> None:
    """Nothing is followed of which a row that was there has another value afterwards."""
    tables = {f"t{number:02}": change for number, change in enumerate(CHANGES)}
    made = [
        statement
        for name, change in tables.items()
        for statement in (
            f"CREATE TABLE {name} (x {change.old})",
            f"INSERT INTO {name} VALUES ('{change.value}')",
        )
    ]
    texts = " UNION ALL ".join(f"SELECT '{name}', concat(x) FROM {name}" for name in tables)
    any_database.execute(
        "CREATE DOMAIN texts AS text",
        "CREATE DOMAIN checked AS text CHECK (value <> '')",
        "CREATE DOMAIN ints AS int",
        "CREATE DOMAIN bigints AS bigint",
        f"ALTER DATABASE {any_database.name} SET timezone = 'UTC'",
        "; ".join(made),
        "CREATE PUBLICATION walflow FOR ALL TABLES",
    )
    before = looked_at(any_database)
    first = dict(any_database.execute(texts))
    any_database.execute(
        "; ".join(f"ALTER TABLE {name} ALTER x TYPE {c.new}" for name, c in tables.items())
    )
    after = looked_at(any_database)
    last = dict(any_database.execute(texts))
    for name, change in tables.items():
        old, new = before[name], after[name]
        assert (old.filenodes != new.filenodes) == change.rewrites, change
        assert outcome(old, new, trust=False) == change.plain, change
        assert outcome(old, new, trust=True) == change.trusted, change
        if change.trusted != "refused":
            was = missing_array(replace(old.columns[0], missing=first[name]))
            now = missing_array(replace(new.columns[0], missing=last[name]))
            assert pc.cast(was, now.type).equals(now), change


def test_values_that_an_expression_made_are_seen_by_the_files(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, x varchar(5))",
        "INSERT INTO t VALUES (1, 'a')",
        "CREATE PUBLICATION walflow FOR ALL TABLES",
    )
    before = looked_at(database)["t"]
    database.execute("ALTER TABLE t ALTER x TYPE varchar(9) USING upper(x)")
    assert "column x changed" in refused(before, looked_at(database)["t"])


def test_added_columns_of_a_real_table(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "CREATE PUBLICATION walflow FOR ALL TABLES",
    )

    def add(*statements: str) -> tuple[TableSchema, TableSchema]:
        before = looked_at(database)["t"]
        database.execute(*statements)
        return before, looked_at(database)["t"]

    def missing(*statements: str) -> str | None:
        (column,) = way(*add(*statements)).added
        return column.missing

    assert missing("ALTER TABLE t ADD a text") is None
    assert missing("ALTER TABLE t ADD b text NOT NULL DEFAULT 'x'") == "x"
    assert (
        missing("ALTER TABLE t ADD c int DEFAULT 1 + 1", "ALTER TABLE t ALTER c SET DEFAULT 7")
        == "2"
    )
    assert missing("ALTER TABLE t DROP b", "ALTER TABLE t ADD b text") is None
    assert missing("VACUUM FULL t", "ALTER TABLE t ADD d int DEFAULT 3") == "3"
    for rewriting in (
        ("ALTER TABLE t ADD e float8 DEFAULT random()",),
        ("ALTER TABLE t ADD f serial",),
        ("ALTER TABLE t ADD g int GENERATED ALWAYS AS IDENTITY",),
        ("ALTER TABLE t ADD h int DEFAULT 1", "VACUUM FULL t"),
    ):
        assert "was added" in refused(*add(*rewriting))
    before, _ = add("ALTER TABLE t ADD i int GENERATED ALWAYS AS (id * 2) STORED")
    hidden = looked_at(database)["t"]
    assert hidden.same_columns(before)
    database.execute("ALTER TABLE t ALTER i DROP EXPRESSION")
    after = looked_at(database)["t"]
    assert "was not published" in refused(hidden, after)
    assert "was added" in refused(before, after)
    # The first schema does not have what came in between, but its files.
    (dropped,) = way(before, add("ALTER TABLE t DROP i, DROP a")[1]).dropped
    assert dropped.name == "a"
