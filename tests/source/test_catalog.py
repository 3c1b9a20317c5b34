"""What a publication publishes, read by a role with REPLICATION and nothing else."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import psycopg
import pytest

from tests.conftest import Database
from walflow.config import TypeSettings
from walflow.errors import NoSelectRight, PublicationMissing, ReservedColumnName
from walflow.model import Lsn, ReplicaIdentity, TableName
from walflow.source.catalog.attributes import missing_array
from walflow.source.catalog.publication import Publication, read_publication
from walflow.source.catalog.published_tables import (
    RESERVED_COLUMNS,
    PublishedTable,
    describe_relation,
    published_tables,
)
from walflow.source.catalog.types import TypeCatalog
from walflow.source.connection import connect
from walflow.source.stream.relation import Relation, RelationColumn, parse_relation


def published(database: Database, name: str = "walflow") -> dict[str, PublishedTable]:
    """The publication's tables by name, read by the weakest role that can."""
    with connect(database.replicator(), application_name="walflow test") as connection:
        found = published_tables(connection, name, TypeSettings())
    return {table.name.name: table for table in found}


def streamed(database: Database, *statements: str) -> dict[str, Relation]:
    """The relation messages that Postgres really sends for these statements."""
    slot = f"{database.name}_probe"
    rows = database.execute(
        f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')",
        *statements,
        f"SELECT data FROM pg_logical_slot_get_binary_changes('{slot}', NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 'walflow')",
    )
    relations = [parse_relation(bytes(data)) for (data,) in rows if bytes(data)[:1] == b"R"]
    database.execute(f"SELECT pg_drop_replication_slot('{slot}')")
    return {relation.name.name: relation for relation in relations}


def hold(database: Database) -> str:
    """A slot from here on."""
    slot = f"{database.name}_hold"
    database.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    return slot


def test_keys_follow_the_replica_identity(any_database: Database) -> None:
    any_database.execute(
        "CREATE TABLE by_key (b int, a int, x text, PRIMARY KEY (a, b) INCLUDE (x))",
        "CREATE TABLE by_index (id int PRIMARY KEY, code int NOT NULL, x text)",
        "CREATE UNIQUE INDEX by_index_code ON by_index (code)",
        "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_code",
        "CREATE TABLE whole (id int PRIMARY KEY, x text)",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        "CREATE TABLE whole_keyless (x text)",
        "ALTER TABLE whole_keyless REPLICA IDENTITY FULL",
        "CREATE TABLE keyless (x text)",
        "CREATE TABLE nothing (id int PRIMARY KEY)",
        "ALTER TABLE nothing REPLICA IDENTITY NOTHING",
        "CREATE PUBLICATION walflow FOR ALL TABLES",
    )
    tables = published(any_database)
    keys = {name: table.schema.key for name, table in tables.items()}
    assert keys == {
        "by_key": ("b", "a"),
        "by_index": ("code",),
        "whole": ("id",),
        "whole_keyless": (),
        "keyless": (),
        "nothing": (),
    }
    assert tables["by_index"].schema.replica_identity is ReplicaIdentity.INDEX
    usable = {name: table.relations[0].has_identity for name, table in tables.items()}
    assert [name for name, has in usable.items() if not has] == ["keyless", "nothing"]
    assert [column.nullable for column in tables["by_key"].schema.columns] == [False, False, True]
    assert all(table.publication.all_tables for table in tables.values())


def test_the_stream_and_the_catalog_describe_tables_alike(any_database: Database) -> None:
    any_database.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        "CREATE DOMAIN cents AS numeric(12,2)",
        "CREATE TABLE by_key (gone int, b int, a int, PRIMARY KEY (a, b))",
        "ALTER TABLE by_key DROP COLUMN gone, ADD m mood[], ADD c cents, ADD n numeric(5,1)[]",
        "ALTER TABLE by_key ADD g int GENERATED ALWAYS AS (a + b) STORED",
        "CREATE TABLE whole (id int PRIMARY KEY, x varchar(10))",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        "CREATE TABLE keyless (x text)",
        "CREATE TABLE parts (id int, at int, x text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)",
        "CREATE TABLE part (x text, at int NOT NULL, id int NOT NULL)",
        "ALTER TABLE parts ATTACH PARTITION part FOR VALUES FROM (0) TO (10)",
        "CREATE PUBLICATION walflow FOR TABLE by_key, whole, keyless, parts"
        " WITH (publish_via_partition_root)",
    )
    relations = streamed(
        any_database,
        "INSERT INTO by_key (a, b) VALUES (1, 2)",
        "INSERT INTO whole VALUES (1)",
        "INSERT INTO keyless VALUES ('x')",
        "INSERT INTO parts VALUES (1, 1, 'x')",
    )
    tables = published(any_database)
    slot = hold(any_database)
    # Postgres announces the partition too, though its changes come as the root's.
    assert relations.keys() - {"part"} == tables.keys()
    with connect(any_database.replicator(), application_name="t") as connection:
        types = TypeCatalog(connection)
        for name, table in tables.items():
            said = (connection, relations[name], types, TypeSettings())
            described = describe_relation(*said, slot=slot)
            assert described == table.schema
            later = describe_relation(*said, Lsn(77), slot=slot)
            assert later.version == 77
            assert later.same_schema(described)
            assert describe_relation(*said, before=described) == described
    with connect(any_database.replicator(), application_name="t") as connection:
        # The column that was dropped could be any of them.
        unknown = describe_relation(
            connection, relations["by_key"], TypeCatalog(connection), TypeSettings()
        )
    assert {column.attnum for column in unknown.columns} == {0}
    assert not unknown.filenodes


def test_a_relation_that_is_long_gone_can_still_be_described(any_database: Database) -> None:
    relation = Relation(
        oid=4_000_000_000,
        name=TableName("public", "gone"),
        identity=ReplicaIdentity.DEFAULT,
        columns=(
            RelationColumn("id", 23, -1, identity=True),
            RelationColumn("feeling", 4_000_000_001, -1, identity=False),
        ),
    )
    with connect(any_database.replicator(), application_name="t") as connection:
        schema = describe_relation(connection, relation, TypeCatalog(connection), TypeSettings())
    assert schema.key == ("id",)
    assert [column.spark_type for column in schema.columns] == ["int", "string"]
    assert [column.attnum for column in schema.columns] == [0, 0]


def test_partitions_published_one_by_one(any_database: Database) -> None:
    any_database.execute(
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part_a PARTITION OF parts FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE part_b PARTITION OF parts FOR VALUES FROM (10) TO (20)",
        "CREATE PUBLICATION walflow FOR TABLE parts",
    )
    tables = published(any_database)
    assert sorted(tables) == ["part_a", "part_b"]
    assert [part.name.name for part in tables["part_a"].relations] == ["part_a"]
    assert not read_flags(any_database).via_root


def test_partitions_published_through_their_root(any_database: Database) -> None:
    any_database.execute(
        "CREATE TABLE parts (id int, k int, PRIMARY KEY (id, k)) PARTITION BY RANGE (id)",
        "CREATE TABLE part_a PARTITION OF parts FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE part_b PARTITION OF parts FOR VALUES FROM (10) TO (20) PARTITION BY LIST (k)",
        "CREATE TABLE part_b1 PARTITION OF part_b FOR VALUES IN (1)",
        "CREATE TABLE empty_parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE PUBLICATION walflow FOR ALL TABLES WITH (publish_via_partition_root)",
        "INSERT INTO parts SELECT n, 1 FROM generate_series(0, 19) AS n",
    )
    tables = published(any_database)
    assert sorted(tables) == ["empty_parts", "parts"]
    assert [part.name.name for part in tables["parts"].relations] == ["part_a", "part_b1"]
    assert all(part.pages == 1 for part in tables["parts"].relations)
    assert tables["parts"].partitioned
    assert tables["empty_parts"].relations == ()


def test_tables_that_are_not_in_the_log_are_not_published(any_database: Database) -> None:
    any_database.execute(
        "CREATE UNLOGGED TABLE scratch (id int PRIMARY KEY)",
        "CREATE VIEW seen AS SELECT 1 AS one",
        "CREATE MATERIALIZED VIEW kept AS SELECT 1 AS one",
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (more int, PRIMARY KEY (id)) INHERITS (parent)",
        "CREATE PUBLICATION walflow FOR ALL TABLES",
    )
    assert sorted(published(any_database)) == ["child", "parent"]


def test_generated_columns_are_left_out(any_database: Database) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id + 1) STORED, z text)",
        "CREATE PUBLICATION walflow FOR TABLE t",
    )
    schema = published(any_database)["t"].schema
    assert schema.column_names == ("id", "z")
    assert [column.attnum for column in schema.columns] == [1, 3]


def test_generated_columns_are_there_if_18_publishes_them(any_database: Database) -> None:
    if any_database.server.version < 18:
        with any_database.connect() as connection, pytest.raises(psycopg.errors.SyntaxError):
            connection.execute("CREATE PUBLICATION p WITH (publish_generated_columns = stored)")
        return
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, s int GENERATED ALWAYS AS (id + 1) STORED,"
        " v int GENERATED ALWAYS AS (id + 2) VIRTUAL)",
        "CREATE PUBLICATION walflow FOR TABLE t WITH (publish_generated_columns = stored)",
        "CREATE PUBLICATION listed FOR TABLE t (id, s)",
    )
    assert published(any_database)["t"].schema.column_names == ("id", "s")
    assert published(any_database, "listed")["t"].schema.column_names == ("id", "s")
    relation = streamed(any_database, "INSERT INTO t VALUES (1)")["t"]
    assert [column.name for column in relation.columns] == ["id", "s"]


def test_column_lists_and_row_filters(any_database: Database) -> None:
    if any_database.server.version < 15:
        any_database.execute(
            "CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION walflow FOR TABLE t"
        )
        assert published(any_database)["t"].row_filter is None
        return
    any_database.execute(
        'CREATE TABLE t (id int PRIMARY KEY, "Hidden" text, x int, y int)',
        "CREATE PUBLICATION walflow FOR TABLE t (y, id, x) WHERE (id > 10 AND id < 99)",
    )
    table = published(any_database)["t"]
    assert table.schema.column_names == ("id", "x", "y")
    assert table.row_filter is not None
    assert any_database.execute(f"SELECT count(*) FROM t WHERE {table.row_filter}") == [(0,)]
    assert table.uncovered == ()


def test_tables_of_a_schema(any_database: Database) -> None:
    if any_database.server.version < 15:
        with any_database.connect() as connection, pytest.raises(psycopg.errors.SyntaxError):
            connection.execute("CREATE PUBLICATION p FOR TABLES IN SCHEMA public")
        return
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE PUBLICATION walflow FOR TABLES IN SCHEMA public",
    )
    assert sorted(published(any_database)) == ["t"]


def test_names_with_every_kind_of_letter(any_database: Database) -> None:
    any_database.execute(
        'CREATE SCHEMA "Ünï.code"',
        'CREATE TABLE "Ünï.code"."a ""b"".c" ("Id" int PRIMARY KEY, id int, "x y" text)',
        "CREATE PUBLICATION walflow FOR ALL TABLES",
    )
    (table,) = published(any_database).values()
    assert table.name == TableName("Ünï.code", 'a "b".c')
    assert table.schema.column_names == ("Id", "id", "x y")
    assert table.schema.key == ("Id",)


def test_an_identity_column_left_out_of_the_list_leaves_no_key(any_database: Database) -> None:
    if any_database.server.version < 15:
        return
    any_database.execute(
        "CREATE TABLE t (a int, b int, PRIMARY KEY (a, b))",
        "CREATE TABLE f (a int PRIMARY KEY, b int, c int)",
        "ALTER TABLE f REPLICA IDENTITY FULL",
        "CREATE PUBLICATION walflow FOR TABLE t (a), f (a, b)",
    )
    tables = published(any_database)
    assert tables["t"].schema.key == ()
    assert tables["t"].uncovered == ("b",)
    assert tables["f"].schema.key == ("a",)
    assert tables["f"].uncovered == ("c",)


@pytest.mark.parametrize("name", [*sorted(RESERVED_COLUMNS), "_WalFlow_x"])
def test_a_column_with_one_of_our_names_is_refused(database: Database, name: str) -> None:
    database.execute(
        f'CREATE TABLE t (id int PRIMARY KEY, "{name}" int)',
        "CREATE PUBLICATION walflow FOR TABLE t",
        "CREATE PUBLICATION everything FOR ALL TABLES",
    )
    problem = published(database)["t"].problem
    assert isinstance(problem, ReservedColumnName)
    assert "public.t" in problem.message
    assert name in problem.message
    everything = published(database, "everything")["t"].problem
    assert isinstance(everything, ReservedColumnName)
    assert "RENAME COLUMN" in everything.hint
    run_hint(database, problem.hint.partition("; or")[0])
    mended = published(database)["t"]
    assert mended.schema.column_names == ("id",)
    assert not isinstance(mended.problem, ReservedColumnName)


def run_hint(database: Database, hint: str) -> None:
    """What there is to paste."""
    with database.connect() as connection:
        for statement in hint.partition(": ")[2].split("; "):
            connection.execute(statement)


def test_the_hint_for_our_names_works_whatever_the_table(any_database: Database) -> None:
    tables = (
        "all_of_them (_lsn int, _seq int)",
        'in_the_key (_lsn int PRIMARY KEY, lsn int, "lsn_" int)',
        "whole_rows (id int, _lsn int)",
        'some (id int PRIMARY KEY, "_EXACT" int, "EXACT" int, _lsn int)',
    )
    ways = ["TABLE s.all_of_them, s.in_the_key, s.whole_rows, s.some", "ALL TABLES"]
    if any_database.server.version >= 15:
        ways += ["TABLES IN SCHEMA s", "TABLES IN SCHEMA s, TABLE s.some"]
    for way in ways:
        any_database.execute(
            "CREATE SCHEMA s",
            *(f"CREATE TABLE s.{table}" for table in tables),
            "ALTER TABLE s.whole_rows REPLICA IDENTITY FULL",
            f"CREATE PUBLICATION walflow FOR {way}",
        )
        found = published(any_database)
        assert len(found) == len(tables)
        for table in found.values():
            problem = table.problem
            assert isinstance(problem, ReservedColumnName)
            assert "()" not in problem.hint
            run_hint(any_database, problem.hint.partition("; or")[0].partition(" Or exclude")[0])
        for mended in published(any_database).values():
            assert not isinstance(mended.problem, ReservedColumnName), (way, mended.name)
            assert mended.uncovered == ()
        any_database.execute("DROP PUBLICATION walflow", "DROP SCHEMA s CASCADE")


def test_the_hint_for_our_names_keeps_the_row_filter(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, price int, _lsn int)",
        "CREATE PUBLICATION walflow FOR TABLE t WHERE (id > 5 AND id < 9)",
    )
    before = published(database)["t"]
    assert before.problem is not None
    run_hint(database, before.problem.hint.partition("; or")[0])
    mended = published(database)["t"]
    assert mended.schema.column_names == ("id", "price")
    assert mended.row_filter == before.row_filter


def test_one_table_that_cannot_be_read_leaves_the_others_alone(any_database: Database) -> None:
    any_database.execute(
        "CREATE TABLE good (id int PRIMARY KEY)",
        "CREATE TABLE named (id int PRIMARY KEY, _lsn int)",
        "CREATE TABLE secret (id int PRIMARY KEY)",
        "CREATE TABLE partly (id int PRIMARY KEY)",
        "ALTER TABLE partly ENABLE ROW LEVEL SECURITY",
        "CREATE PUBLICATION walflow FOR ALL TABLES",
    )
    uri = any_database.replicator("GRANT SELECT ON good, named, partly TO {role}")
    with connect(uri, application_name="t") as connection:
        tables = published_tables(connection, "walflow", TypeSettings())
    problems = {table.name.name: table.problem for table in tables}
    assert problems.pop("good") is None
    assert {name: type(problem) for name, problem in problems.items()} == {
        "named": ReservedColumnName,
        "partly": NoSelectRight,
        "secret": NoSelectRight,
    }
    for name, problem in problems.items():
        assert problem is not None
        assert f"public.{name}" in problem.message
        assert problem.hint
    assert "BYPASSRLS" in str(problems["partly"] and problems["partly"].hint)


def test_a_column_that_takes_one_of_our_names_in_the_stream(any_database: Database) -> None:
    any_database.execute(
        "CREATE TABLE t (_lsn int PRIMARY KEY, x int)", "CREATE PUBLICATION walflow FOR TABLE t"
    )
    relation = streamed(any_database, "INSERT INTO t VALUES (1)")["t"]
    extra = RelationColumn("~_lsn", 23, -1, identity=False)
    with connect(any_database.replicator(), application_name="t") as connection:
        types = TypeCatalog(connection)
        schema = describe_relation(connection, relation, types, TypeSettings())
        taken = replace(relation, columns=(*relation.columns, extra))
        other = describe_relation(connection, taken, types, TypeSettings())
    assert schema.column_names == ("~_lsn", "x")
    assert schema.key == ("~_lsn",)
    assert [column.attnum for column in schema.columns] == [1, 2]
    assert [column.nullable for column in schema.columns] == [False, True]
    assert other.column_names == ("~~_lsn", "x", "~_lsn")
    assert other.key == ("~~_lsn",)


def test_flags_of_a_publication(any_database: Database) -> None:
    any_database.execute("CREATE PUBLICATION walflow WITH (publish = 'insert, delete')")
    flags = read_flags(any_database)
    assert flags.unpublished == ("update", "truncate")
    assert flags.published == {"insert", "delete"}
    assert flags.needs_identity
    with (
        connect(any_database.uri, application_name="t") as connection,
        pytest.raises(PublicationMissing),
    ):
        published_tables(connection, "missing", TypeSettings())


def read_flags(database: Database) -> Publication:
    with connect(database.replicator(), application_name="t") as connection:
        return read_publication(connection, "walflow")


def test_a_rewritten_table_has_another_file(any_database: Database) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION walflow FOR TABLE t"
    )
    (before,) = published(any_database)["t"].relations
    any_database.execute("INSERT INTO t VALUES (1)", "VACUUM t", "ANALYZE t")
    (same,) = published(any_database)["t"].relations
    assert same.filenode == before.filenode > 0
    any_database.execute("VACUUM FULL t")
    (after,) = published(any_database)["t"].relations
    assert after.oid == before.oid
    assert after.filenode not in (before.filenode, 0)


MISSING = {
    "int": ("7", 7),
    "bigint": ("-7", -7),
    "bool": ("true", True),
    "text": ('q{"},\\ ä\n', 'q{"},\\ ä\n'),
    "varchar(9)": ("", ""),
    "name": ("NULL", "NULL"),
    "char(4)": ("x", "x   "),
    "numeric(5,2)": ("1", Decimal("1.00")),
    "float8": ("-Infinity", float("-inf")),
    "bytea": (r"\\x00ff5c", b"\x00\xff\\"),
    "int[]": ("{1,NULL,3}", [1, None, 3]),
    "text[]": ('{"a,b","{}",NULL}', ["a,b", "{}", None]),
    "box": ("(1,1),(0,0)", "(1,1),(0,0)"),
    "box[]": ("{(1,1),(0,0);(3,3),(2,2)}", ["(1,1),(0,0)", "(3,3),(2,2)"]),
    "jsonb": ('{"a": [1, "x"]}', '{"a": [1, "x"]}'),
    "inet": ("10.0.0.1", "10.0.0.1"),
    "interval": ("1 day 02:00:00", "1 day 02:00:00"),
    "mood": ("so la", "so la"),
    "pair": ('(1,"a b")', '(1,"a b")'),
}
NOT_HELD = {
    "timestamptz": "infinity",
    "date": "-infinity",
    "numeric": "NaN",
    "numeric(9,2)": "NaN",
    "timestamp": "0044-03-15 12:00:00 BC",
    "int[]": "[3:4]={1,2}",
}


def test_what_older_rows_have_in_added_columns(any_database: Database) -> None:
    known = list(MISSING.items())
    any_database.execute(
        "CREATE TYPE mood AS ENUM ('so la')",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE odd (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "INSERT INTO odd VALUES (1)",
        *(
            f"ALTER TABLE t ADD c{n} {kind} DEFAULT E'{text}'".replace("\\ ", "\\\\ ")
            for n, (kind, (text, _)) in enumerate(known)
        ),
        *(
            f"ALTER TABLE odd ADD c{n} {kind} DEFAULT '{text}'"
            for n, (kind, text) in enumerate(NOT_HELD.items())
        ),
        "ALTER TABLE t ADD at timestamptz DEFAULT '2026-01-02 03:04:05.678+02', ADD plain int",
        "CREATE PUBLICATION walflow FOR ALL TABLES",
    )
    tables = published(any_database)
    _, *columns, at, plain = tables["t"].schema.columns
    for column, (kind, (_, value)) in zip(columns, known, strict=True):
        assert column.missing_known, kind
        assert missing_array(column).to_pylist() == [value], kind
    (printed,) = any_database.execute(
        f"SELECT {', '.join(f'concat({column.name})' for column in columns)} FROM t"
    )
    assert printed == tuple(column.missing for column in columns)
    assert at.missing == "2026-01-02 01:04:05.678+00"
    assert (plain.missing, plain.missing_known) == (None, True)
    assert missing_array(plain).to_pylist() == [None]
    for column in tables["odd"].schema.columns[1:]:
        assert (column.missing, column.missing_known) == (None, False), column.type.name


def test_what_older_rows_have_in_added_columns_of_partitions(any_database: Database) -> None:
    any_database.execute(
        "CREATE TABLE p (id int, gone int, x text) PARTITION BY RANGE (id)",
        "ALTER TABLE p DROP gone",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id)",
        "CREATE TABLE p2a PARTITION OF p2 FOR VALUES FROM (10) TO (15)",
        "CREATE PUBLICATION walflow FOR TABLE p WITH (publish_via_partition_root)",
    )
    before = published(any_database)["p"]
    assert before.schema.filenodes == {relation.filenode for relation in before.relations}
    assert len(before.schema.filenodes) == 2
    any_database.execute("ALTER TABLE p ADD y int DEFAULT 5, ADD z int")
    both = published(any_database)["p"].schema
    assert both.filenodes == before.schema.filenodes
    assert [(c.missing, c.missing_known) for c in both.columns[2:]] == [("5", True), (None, True)]
    # A new partition has nothing to say of rows from before; which one is new nobody tells.
    any_database.execute("CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (20) TO (30)")
    grown = published(any_database)["p"].schema
    assert both.filenodes < grown.filenodes
    assert [c.missing_known for c in grown.columns] == [True, True, False, True]
    any_database.execute("DROP TABLE p3", "VACUUM FULL p1")
    rewritten = published(any_database)["p"].schema
    assert [c.missing_known for c in rewritten.columns] == [True, True, False, True]
    assert len(rewritten.filenodes - both.filenodes) == 1


def test_messages_are_described_late(any_database: Database) -> None:
    """All is altered before the first message is looked at."""
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a text, b text, z text)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "CREATE PUBLICATION walflow FOR ALL TABLES",
    )
    slot = f"{any_database.name}_late"
    any_database.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    form = published(any_database)["t"].schema
    any_database.execute(
        "INSERT INTO t VALUES (1)",
        "ALTER TABLE t RENAME a TO c",
        "ALTER TABLE t RENAME b TO a",
        "ALTER TABLE t RENAME id TO b",
        "INSERT INTO t VALUES (2)",
        "ALTER TABLE t ADD d int DEFAULT 4, ADD e int",
        "INSERT INTO t VALUES (3)",
        "ALTER TABLE t DROP c, ADD c int",
        "INSERT INTO t VALUES (4)",
        "ALTER TABLE t DROP c, ADD c int",
        "INSERT INTO t VALUES (5)",
    )
    rows = any_database.execute(
        f"SELECT data FROM pg_logical_slot_peek_binary_changes('{slot}', NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 'walflow')"
    )
    relations = [parse_relation(bytes(data)) for (data,) in rows if bytes(data)[:1] == b"R"]
    described = []
    with connect(any_database.replicator(), application_name="t") as connection:
        types = TypeCatalog(connection)
        for relation in relations:
            form = describe_relation(
                connection, relation, types, TypeSettings(), before=form, slot=slot
            )
            described.append(form)
            if not all(column.attnum for column in form.columns):
                break
    columns = [[(c.attnum, c.name) for c in form.columns] for form in described]
    assert columns == [
        [(1, "id"), (2, "a"), (3, "b"), (4, "z")],
        [(1, "b"), (2, "c"), (3, "a"), (4, "z")],
        [(1, "b"), (2, "c"), (3, "a"), (4, "z"), (5, "d"), (6, "e")],
        # The next two messages are the same, of different columns.
        [(0, "b"), (0, "a"), (0, "z"), (0, "d"), (0, "e"), (0, "c")],
    ]
    assert [form.key for form in described] == [("id",), ("b",), ("b",), ("b",)]
    # Nothing was written anew from the first form on.
    assert {form.filenodes for form in described[:3]} == {
        published(any_database)["t"].schema.filenodes
    }
    assert described[2].columns[4].missing == "4"
    assert [form.newest for form in described[:3]] == [4, 4, 6]


def test_files_are_not_taken_for_those_of_an_earlier_form(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION walflow FOR ALL TABLES"
    )
    slot = hold(database)
    relation = streamed(database, "INSERT INTO t VALUES (1)")["t"]
    before = published(database)["t"].schema
    database.execute("ALTER TABLE t ADD x serial")
    with connect(database.replicator(), application_name="t") as connection:
        said = (connection, relation, TypeCatalog(connection), TypeSettings())
        assert not describe_relation(*said, slot=slot).filenodes
        assert not describe_relation(*said, before=before, slot=slot).filenodes
    after = published(database)["t"].schema
    assert after.filenodes
    assert after.filenodes.isdisjoint(before.filenodes)
