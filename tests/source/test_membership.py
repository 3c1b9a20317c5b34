"""Whether a table was published all the time: each kind of gap is seen, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest

from tests.conftest import Database
from walflow.config import TypeSettings
from walflow.serialization import from_json, to_json
from walflow.source.catalog.publication_watch import publication_fingerprint
from walflow.source.catalog.published_tables import published_tables
from walflow.source.connection import connect
from walflow.states import Gap, Membership

PARTITIONED = (
    "CREATE TABLE p (id int, k int, x text, PRIMARY KEY (id, k)) PARTITION BY RANGE (id)",
    "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20) PARTITION BY LIST (k)",
    "CREATE TABLE p2a PARTITION OF p2 FOR VALUES IN (1)",
    "INSERT INTO p VALUES (1, 1), (11, 1)",
)
VIA_ROOT = "CREATE PUBLICATION walflow FOR TABLE p WITH (publish_via_partition_root)"


def membership(database: Database, table: str) -> Membership:
    """As the weakest role sees it, and after a stay in a store."""
    with connect(database.replicator(), application_name="t") as connection:
        tables = published_tables(connection, "walflow", TypeSettings())
    (found,) = (each.membership for each in tables if each.name.name == table)
    stored = from_json(Membership, to_json(found))
    assert stored == found
    assert stored.came_empty == found.came_empty
    return found


def continues(database: Database, table: str, *statements: str) -> bool:
    before = membership(database, table)
    assert before.continues(before)
    database.execute(*statements)
    return before.continues(membership(database, table))


def in_one_transaction(*statements: str) -> str:
    return f"DO $do$ BEGIN {'; '.join(statements)}; END $do$"


LOGGED = {
    "rows": ("INSERT INTO p VALUES (2, 1)", "DELETE FROM p WHERE id = 1", "TRUNCATE p"),
    "maintenance": ("ANALYZE", "VACUUM FREEZE", "VACUUM FULL p1", "REINDEX TABLE p1"),
    "columns": ("ALTER TABLE p ADD z int DEFAULT 1, ALTER x TYPE varchar", "ALTER TABLE p DROP z"),
    "names": (
        "ALTER TABLE p RENAME TO q",
        "ALTER TABLE p1 RENAME TO q1",
        "ALTER TABLE q RENAME TO p",
    ),
    "another entry": (
        "ALTER PUBLICATION walflow ADD TABLE other",
        "ALTER PUBLICATION walflow DROP TABLE other",
    ),
    "set to the same": ("ALTER PUBLICATION walflow SET TABLE p, other",),
    "maintenance of the publication": (
        "COMMENT ON PUBLICATION walflow IS 'ours'",
        "ALTER PUBLICATION walflow OWNER TO CURRENT_USER",
        "VACUUM FREEZE pg_publication",
        "VACUUM FULL pg_publication",
    ),
    "new partition": (
        "CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (20) TO (30)",
        "INSERT INTO p VALUES (21, 1)",
    ),
    "new partition, altered": (
        "CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (20) TO (30)",
        "INSERT INTO p VALUES (21, 1)",
        "ALTER TABLE p3 SET (fillfactor = 50), ALTER x SET DEFAULT 'x'",
        "ALTER TABLE p ADD z int DEFAULT 5",
        "CREATE INDEX ON p (x)",
        "GRANT SELECT ON p3 TO PUBLIC",
        "VACUUM FREEZE",
        "VACUUM FULL pg_attribute",
        "VACUUM FULL pg_inherits",
    ),
    "new partition on the second level": (
        "CREATE TABLE p2b PARTITION OF p2 FOR VALUES IN (2)",
        "INSERT INTO p VALUES (11, 2)",
    ),
    "new tree": (
        "CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (20) TO (30) PARTITION BY LIST (k)",
        "CREATE TABLE p3a PARTITION OF p3 FOR VALUES IN (2)",
        "INSERT INTO p VALUES (21, 2)",
    ),
    "new partition filled at once": (
        in_one_transaction(
            "CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (20) TO (30)",
            "INSERT INTO p VALUES (21, 1)",
        ),
    ),
    "empty table attached": (
        "CREATE TABLE p3 (LIKE p)",
        "ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (20) TO (30)",
    ),
    "empty tree attached": (
        "CREATE TABLE p3 (LIKE p) PARTITION BY LIST (k)",
        "CREATE TABLE p3a PARTITION OF p3 FOR VALUES IN (2)",
        "ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (20) TO (30)",
    ),
}
GAPS = {
    "detached": ("ALTER TABLE p DETACH PARTITION p1",),
    "dropped": ("DROP TABLE p1",),
    "dropped on the second level": ("DROP TABLE p2a",),
    "tree detached": ("ALTER TABLE p DETACH PARTITION p2",),
    "detached and attached again": (
        "ALTER TABLE p DETACH PARTITION p1",
        "DELETE FROM p1",
        "ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (10)",
    ),
    "attached with rows": (
        "CREATE TABLE p3 (LIKE p)",
        "INSERT INTO p3 VALUES (21, 1)",
        "ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (20) TO (30)",
    ),
    "made, filled and attached in one transaction": (
        in_one_transaction(
            "CREATE TABLE p3 (LIKE p INCLUDING ALL)",
            "INSERT INTO p3 VALUES (21, 1)",
            "ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (20) TO (30)",
        ),
    ),
    "born, detached, filled and attached in one transaction": (
        in_one_transaction(
            "CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (20) TO (30)",
            "ALTER TABLE p DETACH PARTITION p3",
            "INSERT INTO p3 VALUES (21, 1)",
            "ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (20) TO (30)",
        ),
    ),
    "tree with rows attached": (
        "CREATE TABLE p3 (LIKE p) PARTITION BY LIST (k)",
        "CREATE TABLE p3a PARTITION OF p3 FOR VALUES IN (2)",
        "INSERT INTO p3 VALUES (21, 2)",
        "ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (20) TO (30)",
    ),
    "unpublished and published again": (
        "ALTER PUBLICATION walflow DROP TABLE p",
        "ALTER PUBLICATION walflow ADD TABLE p",
    ),
    "publication made again": ("DROP PUBLICATION walflow", VIA_ROOT),
    "kinds switched off and on again": (
        "ALTER PUBLICATION walflow SET (publish = 'insert')",
        "DELETE FROM p",
        "ALTER PUBLICATION walflow SET (publish = 'insert, update, delete, truncate')",
    ),
    # Which ones were left out in between is not known.
    "fewer kinds": ("ALTER PUBLICATION walflow SET (publish = 'insert, update')",),
    # Postgres 18 skips changes while there is no publication of that name.
    "publication renamed and back": (
        "ALTER PUBLICATION walflow RENAME TO away",
        "ALTER PUBLICATION away RENAME TO walflow",
    ),
}


@pytest.mark.parametrize("kind", LOGGED)
def test_what_the_log_tells(database: Database, kind: str) -> None:
    database.execute(*PARTITIONED, "CREATE TABLE other (id int PRIMARY KEY)", VIA_ROOT)
    assert continues(database, "p", *LOGGED[kind])


@pytest.mark.parametrize("kind", GAPS)
def test_what_the_log_does_not_tell(database: Database, kind: str) -> None:
    database.execute(*PARTITIONED, VIA_ROOT)
    assert not continues(database, "p", *GAPS[kind])


def test_partitions_on_every_version(any_database: Database) -> None:
    any_database.execute(
        *PARTITIONED,
        # All columns have defaults, which CREATE TABLE writes in a second step.
        "CREATE TABLE d (id int DEFAULT 1 PRIMARY KEY, x text NOT NULL DEFAULT 'x')"
        " PARTITION BY RANGE (id)",
        "CREATE PUBLICATION walflow FOR TABLE p, d WITH (publish_via_partition_root)",
    )
    assert continues(any_database, "p", *LOGGED["new partition, altered"])
    assert continues(
        any_database,
        "d",
        "CREATE TABLE d1 PARTITION OF d FOR VALUES FROM (0) TO (10)",
        "INSERT INTO d VALUES (1)",
    )
    assert not continues(
        any_database,
        "d",
        in_one_transaction(
            "CREATE TABLE d2 (id int DEFAULT 1 PRIMARY KEY, x text NOT NULL DEFAULT 'x')",
            "INSERT INTO d2 VALUES (11)",
            "ALTER TABLE d ATTACH PARTITION d2 FOR VALUES FROM (10) TO (20)",
            "ALTER TABLE d2 ALTER id SET DEFAULT 2, ALTER x SET DEFAULT 'y'",
        ),
    )
    assert not continues(any_database, "d", "DROP TABLE d1")


def test_partitions_that_are_published_one_by_one(any_database: Database) -> None:
    any_database.execute(*PARTITIONED, "CREATE PUBLICATION walflow FOR TABLE p")
    assert continues(any_database, "p2a", *GAPS["detached and attached again"])
    assert not continues(
        any_database,
        "p2a",
        "ALTER TABLE p DETACH PARTITION p2",
        "ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (10) TO (20)",
    )
    any_database.execute("ALTER PUBLICATION walflow ADD TABLE p1")
    assert continues(any_database, "p1", *GAPS["detached and attached again"])


def test_more_kinds_of_change_than_before(any_database: Database) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE PUBLICATION walflow FOR ALL TABLES WITH (publish = 'insert')",
    )
    assert continues(any_database, "t", "ALTER TABLE t ADD x int")
    assert not continues(
        any_database, "t", "ALTER PUBLICATION walflow SET (publish = 'insert, update')"
    )


def test_kinds_that_were_left_out_for_a_time(any_database: Database) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE PUBLICATION walflow FOR TABLE t",
    )
    assert continues(
        any_database,
        "t",
        "ALTER PUBLICATION walflow ADD TABLE other",
        "ALTER PUBLICATION walflow SET TABLE t",
        *LOGGED["maintenance of the publication"],
    )
    assert not continues(
        any_database,
        "t",
        "ALTER PUBLICATION walflow SET (publish = 'insert')",
        "DELETE FROM t",
        "ALTER PUBLICATION walflow SET (publish = 'insert, update, delete, truncate')",
    )


def test_unlogged_tables_are_not_published(any_database: Database) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE PUBLICATION walflow FOR ALL TABLES",
        "ALTER TABLE t SET UNLOGGED",
    )
    with connect(any_database.uri, application_name="t") as connection:
        assert published_tables(connection, "walflow", TypeSettings()) == []


UNLOGGED_MEANWHILE = (
    "ALTER TABLE {t} SET UNLOGGED",
    "DELETE FROM {t}",
    "ALTER TABLE {t} SET LOGGED",
)


def test_tables_that_were_unlogged_for_a_time(any_database: Database) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, x text)",
        "CREATE TABLE narrow (id int PRIMARY KEY)",
        "CREATE TABLE p (id int, x text) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE PUBLICATION walflow FOR ALL TABLES WITH (publish_via_partition_root)",
    )
    maintenance = ("VACUUM FULL {t}", "TRUNCATE {t}", "CLUSTER {t} USING {t}_pkey", "VACUUM {t}")
    assert continues(any_database, "t", *(sql.format(t="t") for sql in maintenance))
    assert continues(any_database, "p", "VACUUM FULL p1", "TRUNCATE p")
    for table, relation in (("t", "t"), ("narrow", "narrow"), ("p", "p1")):
        statements = [sql.format(t=relation) for sql in UNLOGGED_MEANWHILE]
        assert not continues(any_database, table, *statements), table
        assert not continues(any_database, table, in_one_transaction(*statements)), table
    # A partition that nobody had seen, and that brings rows which were not logged.
    made = "CREATE UNLOGGED TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)"
    statements = [made, "INSERT INTO p VALUES (11, 'x')", "ALTER TABLE p2 SET LOGGED"]
    assert not continues(any_database, "p", *statements)


def test_a_table_that_is_named_cannot_have_been_unlogged(any_database: Database) -> None:
    any_database.execute(
        "CREATE TABLE narrow (id int PRIMARY KEY)",
        "CREATE TABLE p (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE PUBLICATION walflow FOR TABLE narrow, p WITH (publish_via_partition_root)",
    )
    with any_database.connect() as connection, pytest.raises(psycopg.Error, match="publication"):
        connection.execute("ALTER TABLE narrow SET UNLOGGED")
    assert continues(any_database, "narrow", "VACUUM FULL narrow", "TRUNCATE narrow")
    assert continues(any_database, "narrow", "ALTER TABLE narrow ALTER id SET DEFAULT 1")
    # What it had in its rows is not in the log.
    other_values = "ALTER TABLE narrow ALTER id TYPE int USING id + 1"
    assert not continues(any_database, "narrow", other_values)
    any_database.execute(
        "CREATE TABLE wide (id int PRIMARY KEY, x text)", "ALTER PUBLICATION walflow ADD TABLE wide"
    )
    other_values = "ALTER TABLE wide ALTER x TYPE text USING upper(x)"
    assert not continues(any_database, "wide", other_values)
    # Its partitions are not named.
    statements = [sql.format(t="p1") for sql in UNLOGGED_MEANWHILE]
    assert not continues(any_database, "p", *statements)


TYPES = (
    "CREATE TYPE mood AS ENUM ('low', 'high')",
    "CREATE TYPE pair AS (a int, feels mood)",
    "CREATE DOMAIN some_pair AS pair",
    "CREATE TYPE span AS RANGE (subtype = mood)",
    "CREATE TYPE outer_pair AS (inside some_pair[], n int)",
    "CREATE TYPE elsewhere AS (a int)",
    "CREATE TABLE row_of (a int, b text)",
    "CREATE TABLE a_mood (id int PRIMARY KEY, v mood)",
    "CREATE TABLE moods (id int PRIMARY KEY, v mood[])",
    "CREATE TABLE a_pair (id int PRIMARY KEY, v pair)",
    "CREATE TABLE outers (id int PRIMARY KEY, v outer_pair)",
    "CREATE TABLE a_span (id int PRIMARY KEY, v span)",
    "CREATE TABLE a_row (id int PRIMARY KEY, v row_of)",
    "CREATE PUBLICATION walflow FOR ALL TABLES",
)
ALTERED: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "labels that are new": (
        (
            "ALTER TYPE mood ADD VALUE 'middle' BEFORE 'high'",
            "ALTER TYPE mood ADD VALUE 'none'",
        ),
        set(),
    ),
    "names": (
        (
            "ALTER TYPE pair RENAME ATTRIBUTE a TO b",
            "ALTER TYPE elsewhere RENAME TO anywhere",
            "ALTER DOMAIN some_pair ADD CHECK (VALUE IS NOT NULL) NOT VALID",
        ),
        set(),
    ),
    "a type of others": (("ALTER TYPE anywhere ADD ATTRIBUTE b int",), set()),
    "a label renamed": (
        ("ALTER TYPE mood RENAME VALUE 'none' TO 'nothing'",),
        {"a_mood", "moods", "a_pair", "outers", "a_span"},
    ),
    "labels swapped": (
        (
            "ALTER TYPE mood RENAME VALUE 'low' TO 'was low'",
            "ALTER TYPE mood RENAME VALUE 'high' TO 'low'",
            "ALTER TYPE mood RENAME VALUE 'was low' TO 'high'",
        ),
        {"a_mood", "moods", "a_pair", "outers", "a_span"},
    ),
    "a label renamed and named back": (
        (
            "ALTER TYPE mood RENAME VALUE 'low' TO 'other'",
            "ALTER TYPE mood RENAME VALUE 'other' TO 'low'",
        ),
        {"a_mood", "moods", "a_pair", "outers", "a_span"},
    ),
    "an attribute that came and went": (
        ("ALTER TYPE pair ADD ATTRIBUTE passing int", "ALTER TYPE pair DROP ATTRIBUTE passing"),
        {"a_pair", "outers"},
    ),
    "an attribute more": (("ALTER TYPE pair ADD ATTRIBUTE c int",), {"a_pair", "outers"}),
    "an attribute made again": (
        ("ALTER TYPE pair DROP ATTRIBUTE c", "ALTER TYPE pair ADD ATTRIBUTE c int"),
        {"a_pair", "outers"},
    ),
    "an attribute less": (("ALTER TYPE pair DROP ATTRIBUTE c",), {"a_pair", "outers"}),
    "a column of a row's type": (("ALTER TABLE row_of ADD c int",), {"a_row"}),
    "columns of the table": (
        ("ALTER TABLE a_pair DROP v", "ALTER TABLE a_mood ADD w pair"),
        set(),
    ),
}


def test_types_that_were_altered(any_database: Database) -> None:
    any_database.execute(*TYPES)

    def seen() -> tuple[str, dict[str, Membership]]:
        with connect(any_database.replicator(), application_name="t") as connection:
            tables = published_tables(connection, "walflow", TypeSettings())
            fingerprint = publication_fingerprint(connection, "walflow")
        return fingerprint, {table.name.name: table.membership for table in tables}

    fingerprint, before = seen()
    for name, (statements, touched) in ALTERED.items():
        any_database.execute(*statements)
        fingerprint_now, now = seen()
        other = {table for table in now if not before[table].continues(now[table])}
        assert other == touched, name
        assert (fingerprint_now != fingerprint) or not touched, name
        assert {before[table].gap(now[table]) for table in touched} <= {Gap.TYPES}
        fingerprint, before = fingerprint_now, now


def test_what_was_stored_before_files_and_types_were_kept(database: Database) -> None:
    database.execute(*TYPES)
    now = membership(database, "outers")
    before = replace(now, files=frozenset(), types=frozenset())
    assert before.continues(now)
    assert before != now


def test_what_was_stored_before_the_version_was_kept(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE PUBLICATION walflow FOR TABLE t WITH (publish = 'insert')",
    )
    now = membership(database, "t")
    before = replace(now, publication="")
    assert before.continues(now)
    database.execute("ALTER PUBLICATION walflow SET (publish = 'insert, update')")
    assert not before.continues(membership(database, "t"))


def test_a_table_of_the_same_name_is_not_the_same(any_database: Database) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION walflow FOR ALL TABLES"
    )
    assert not continues(any_database, "t", "DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY)")


def test_row_filters_and_schemas(any_database: Database) -> None:
    if any_database.server.version < 15:
        with any_database.connect() as connection, pytest.raises(Exception, match="syntax"):
            connection.execute("CREATE PUBLICATION walflow FOR TABLES IN SCHEMA public")
        return
    any_database.execute(
        "CREATE SCHEMA elsewhere",
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE s (id int PRIMARY KEY)",
        "CREATE PUBLICATION walflow FOR TABLE t WHERE (id > 1)",
    )
    assert continues(any_database, "t", "ALTER PUBLICATION walflow SET TABLE t WHERE (id > 1)")
    assert not continues(any_database, "t", "ALTER PUBLICATION walflow SET TABLE t WHERE (id > 2)")
    any_database.execute("ALTER PUBLICATION walflow ADD TABLES IN SCHEMA public")
    assert continues(any_database, "s", "ALTER TABLE s ADD x int")
    there_and_back = (
        "ALTER TABLE s SET SCHEMA elsewhere",
        "ALTER TABLE elsewhere.s SET SCHEMA public",
    )
    assert not continues(any_database, "s", *there_and_back)
    any_database.execute("ALTER PUBLICATION walflow ADD TABLE s")
    assert continues(any_database, "s", *there_and_back)


def test_what_was_never_published_does_not_continue() -> None:
    assert not Membership().continues(Membership())
