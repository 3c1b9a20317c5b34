"""The publication's fingerprint: other for every change that matters, and for nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tests.conftest import Database
from walflow.errors import PublicationMissing
from walflow.source.catalog.publication_watch import publication_fingerprint
from walflow.source.connection import connect

TABLES = (
    "CREATE SCHEMA elsewhere",
    "CREATE TABLE t (id int PRIMARY KEY, x int NOT NULL, y text)",
    "CREATE UNIQUE INDEX t_x ON t (x)",
    "CREATE TABLE other (id int PRIMARY KEY)",
    "CREATE TABLE p (id int, k int, x text, PRIMARY KEY (id, k)) PARTITION BY RANGE (id)",
    "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20) PARTITION BY LIST (k)",
    "CREATE TABLE p2a PARTITION OF p2 FOR VALUES IN (1)",
)
QUIET = {
    "rows": (
        "INSERT INTO t SELECT n, n FROM generate_series(1, 1000) AS n",
        "INSERT INTO p VALUES (1, 1, 'a'), (11, 1, 'b')",
        "UPDATE t SET x = x + 1000",
        "DELETE FROM t WHERE id > 500",
    ),
    "maintenance": ("ANALYZE", "VACUUM FREEZE", "REINDEX SCHEMA public"),
    "what is not published": ("CREATE TEMP TABLE temporary (id int)", "CREATE VIEW v AS SELECT 1"),
}
OF_TABLES = {
    "files written anew": ("VACUUM FULL t",),
    "a partition's file": ("TRUNCATE p",),
    "missing value": ("ALTER TABLE t ADD filled int DEFAULT 1",),
    "missing value lost": ("VACUUM FULL t",),
    "drop column with a missing value": ("ALTER TABLE t DROP filled",),
    "rename table": ("ALTER TABLE t RENAME TO u",),
    "rename table back": ("ALTER TABLE u RENAME TO t",),
    "add column": ("ALTER TABLE t ADD z int",),
    "rename column": ("ALTER TABLE t RENAME z TO zz",),
    "change type": ("ALTER TABLE t ALTER zz TYPE bigint",),
    "change type modifier": ("ALTER TABLE t ALTER y TYPE varchar(20)",),
    "longer": ("ALTER TABLE t ALTER y TYPE varchar(30)",),
    "drop and add column again": ("ALTER TABLE t DROP zz", "ALTER TABLE t ADD zz bigint"),
    "drop column": ("ALTER TABLE t DROP zz",),
    "swap names": (
        "ALTER TABLE t RENAME x TO was_x",
        "ALTER TABLE t RENAME y TO x",
        "ALTER TABLE t RENAME was_x TO y",
    ),
    "identity full": ("ALTER TABLE t REPLICA IDENTITY FULL",),
    "identity index": ("ALTER TABLE t REPLICA IDENTITY USING INDEX t_x",),
    "identity default": ("ALTER TABLE t REPLICA IDENTITY DEFAULT",),
    "drop key": ("ALTER TABLE t DROP CONSTRAINT t_pkey",),
    "other key": ("ALTER TABLE t ADD PRIMARY KEY (id, y)",),
    "key of a partition's own": ("ALTER TABLE p1 REPLICA IDENTITY FULL",),
    "new partition": ("CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (20) TO (30)",),
    "new partition below": ("CREATE TABLE p2b PARTITION OF p2 FOR VALUES IN (2)",),
    "detach": ("ALTER TABLE p DETACH PARTITION p3",),
    "attach": ("ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (20) TO (30)",),
    "detach and attach": (
        "ALTER TABLE p DETACH PARTITION p3",
        "ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (20) TO (30)",
    ),
    "detach below": ("ALTER TABLE p2 DETACH PARTITION p2b",),
    "drop partition": ("DROP TABLE p3",),
    "column of partitions": ("ALTER TABLE p ADD z int",),
    "rename schema": ("ALTER SCHEMA public RENAME TO public2",),
    "rename schema back": ("ALTER SCHEMA public2 RENAME TO public",),
    "move table": ("ALTER TABLE t SET SCHEMA elsewhere",),
    "move table back": ("ALTER TABLE elsewhere.t SET SCHEMA public",),
    "drop table": ("DROP TABLE other",),
    "publish fewer kinds": ("ALTER PUBLICATION walflow SET (publish = 'insert')",),
    "publish partitions otherwise": (
        "ALTER PUBLICATION walflow SET (publish_via_partition_root = {other_way})",
    ),
    "publication made again": ("DROP PUBLICATION walflow", "{publication}"),
}
FOR_TABLE = {
    "add table": (
        "CREATE TABLE added (id int PRIMARY KEY)",
        "ALTER PUBLICATION walflow ADD TABLE added",
    ),
    "unpublish": ("ALTER PUBLICATION walflow DROP TABLE added",),
    "unpublish and publish": (
        "ALTER PUBLICATION walflow DROP TABLE t",
        "ALTER PUBLICATION walflow ADD TABLE t",
    ),
    "drop and make again": (
        "DROP TABLE added",
        "CREATE TABLE added (id int PRIMARY KEY)",
        "ALTER PUBLICATION walflow ADD TABLE added",
    ),
}
FOR_TABLE_15 = {
    "row filter": ("ALTER PUBLICATION walflow SET TABLE t WHERE (id > 1), other, p",),
    "other row filter": ("ALTER PUBLICATION walflow SET TABLE t WHERE (id > 2), other, p",),
    "column list": ("ALTER PUBLICATION walflow SET TABLE t (id, x), other, p",),
    "other column list": ("ALTER PUBLICATION walflow SET TABLE t (id, y), other, p",),
    "neither": ("ALTER PUBLICATION walflow SET TABLE t, other, p",),
}
WITHOUT_ENTRY = {
    "new table": ("CREATE TABLE added (id int PRIMARY KEY)",),
    "drop and make again": ("DROP TABLE added", "CREATE TABLE added (id int PRIMARY KEY)"),
    "no longer in the log": ("ALTER TABLE added SET UNLOGGED",),
}
OF_SCHEMA = {
    "there and back": (
        "ALTER TABLE t SET SCHEMA elsewhere",
        "ALTER TABLE elsewhere.t SET SCHEMA public",
    ),
    "another schema": (
        "CREATE TABLE elsewhere.more (id int PRIMARY KEY)",
        "ALTER PUBLICATION walflow ADD TABLES IN SCHEMA elsewhere",
    ),
}

Steps = Mapping[str, Sequence[str]]


def check(database: Database, publication: str, *changes: Steps, via_root: bool = True) -> None:
    """Make the publication; then quiet steps leave its fingerprint, and every change alters it."""
    create = f"{publication} WITH (publish_via_partition_root = {via_root})"
    database.execute(*TABLES, create)
    with connect(database.replicator(), application_name="t") as connection:
        last = publication_fingerprint(connection, "walflow")
        for name, statements in QUIET.items():
            database.execute(*statements)
            assert publication_fingerprint(connection, "walflow") == last, name
        for name, step in (each for steps in changes for each in steps.items()):
            database.execute(
                *(sql.format(publication=create, other_way=not via_root) for sql in step)
            )
            now = publication_fingerprint(connection, "walflow")
            assert now != last, name
            last = now


@pytest.mark.parametrize("via_root", [True, False], ids=["root", "leaves"])
def test_tables(any_database: Database, via_root: bool) -> None:
    since_15 = FOR_TABLE_15 if any_database.server.version >= 15 else {}
    publication = "CREATE PUBLICATION walflow FOR TABLE t, p"
    check(
        any_database,
        "CREATE PUBLICATION walflow FOR TABLE t, other, p",
        FOR_TABLE,
        since_15,
        OF_TABLES | {"publication made again": ("DROP PUBLICATION walflow", publication)},
        via_root=via_root,
    )


@pytest.mark.parametrize("via_root", [True, False], ids=["root", "leaves"])
def test_all_tables(any_database: Database, via_root: bool) -> None:
    check(
        any_database,
        "CREATE PUBLICATION walflow FOR ALL TABLES",
        WITHOUT_ENTRY,
        OF_TABLES,
        via_root=via_root,
    )


def test_tables_of_a_schema(any_database: Database) -> None:
    if any_database.server.version < 15:
        with any_database.connect() as connection, pytest.raises(Exception, match="syntax"):
            connection.execute("CREATE PUBLICATION walflow FOR TABLES IN SCHEMA public")
        return
    check(
        any_database,
        "CREATE PUBLICATION walflow FOR TABLES IN SCHEMA public",
        WITHOUT_ENTRY,
        OF_SCHEMA,
        OF_TABLES,
    )


def test_a_publication_that_is_gone(any_database: Database) -> None:
    any_database.execute("CREATE PUBLICATION walflow")
    with connect(any_database.replicator(), application_name="t") as connection:
        empty = publication_fingerprint(connection, "walflow")
        assert empty == publication_fingerprint(connection, "walflow")
        any_database.execute("DROP PUBLICATION walflow")
        with pytest.raises(PublicationMissing):
            publication_fingerprint(connection, "walflow")
