"""Ranges: together they read every published row once, and each reads only its own pages."""

from __future__ import annotations

from collections import Counter

from tests.conftest import Database
from walflow.config import TypeSettings
from walflow.source.catalog.published_tables import PublishedTable, published_tables
from walflow.source.connection import connect
from walflow.source.copy.ranges import CopyRange, copy_ranges

WIDE = "CREATE TABLE big AS SELECT n AS id, repeat('x', 300) AS pad FROM generate_series(1, {}) n"


def published(database: Database) -> list[PublishedTable]:
    with connect(database.uri, application_name="t") as connection:
        return published_tables(connection, "walflow", TypeSettings())


def read(database: Database, ranges: list[CopyRange]) -> Counter[tuple[object, ...]]:
    rows: Counter[tuple[object, ...]] = Counter()
    for piece in ranges:
        rows.update(database.execute(piece.query))
    return rows


def test_every_row_is_read_once(any_database: Database) -> None:
    any_database.execute(
        WIDE.format(5000),
        "ALTER TABLE big ADD PRIMARY KEY (id)",
        "CREATE TABLE small (id int PRIMARY KEY)",
        "INSERT INTO small VALUES (1)",
        "CREATE TABLE empty (id int PRIMARY KEY)",
        "CREATE PUBLICATION walflow FOR ALL TABLES",
        "UPDATE big SET pad = 'y' WHERE id % 3 = 0",
    )
    ranges = copy_ranges(published(any_database), range_bytes=200_000)
    by_table = Counter(piece.table.name.name for piece in ranges)
    assert by_table["big"] > 5
    assert by_table["small"] == by_table["empty"] == 1
    assert [piece.bytes for piece in ranges] == sorted(
        (piece.bytes for piece in ranges), reverse=True
    )
    big = [piece for piece in ranges if piece.table.name.name == "big"]
    rows = read(any_database, big)
    assert rows == Counter(any_database.execute("SELECT id, pad FROM big"))
    assert max(rows.values()) == 1
    ends = sorted((piece.first_page, piece.end_page) for piece in big)
    assert ends[0][0] == 0
    assert [end for _, end in ends[:-1]] == [first for first, _ in ends[1:]]
    assert ends[-1][1] is None


def test_rows_that_come_after_the_cut_are_in_the_open_end(any_database: Database) -> None:
    any_database.execute(
        WIDE.format(1000),
        "CREATE TABLE empty (id int)",
        "CREATE PUBLICATION walflow FOR ALL TABLES",
    )
    ranges = copy_ranges(published(any_database), range_bytes=100_000)
    any_database.execute(
        "INSERT INTO big SELECT n, repeat('z', 300) FROM generate_series(1001, 2000) n",
        "INSERT INTO empty VALUES (1)",
    )
    rows = read(any_database, [piece for piece in ranges if piece.table.name.name == "big"])
    assert len(rows) == 2000
    assert set(rows.values()) == {1}
    (empty,) = (piece for piece in ranges if piece.table.name.name == "empty")
    assert any_database.execute(empty.query) == [(1,)]


def test_a_range_reads_only_its_pages(any_database: Database) -> None:
    any_database.execute(
        WIDE.format(5000),
        "ALTER TABLE big ADD PRIMARY KEY (id)",
        "CREATE PUBLICATION walflow FOR TABLE big",
        "ANALYZE big",
    )
    ranges = copy_ranges(published(any_database), range_bytes=200_000)
    assert len(ranges) > 3
    for piece in ranges:
        plan = "\n".join(line for (line,) in any_database.execute(f"EXPLAIN {piece.query}"))
        assert "Tid Range Scan" in plan, plan


def test_large_values_outside_the_pages_count(any_database: Database) -> None:
    any_database.execute(
        "CREATE TABLE fat (id int PRIMARY KEY, doc text)",
        "ALTER TABLE fat ALTER doc SET STORAGE EXTERNAL",
        "INSERT INTO fat SELECT n, repeat('x', 20000) FROM generate_series(1, 400) n",
        "CREATE PUBLICATION walflow FOR TABLE fat",
    )
    (table,) = published(any_database)
    assert table.relations[0].pages < 10
    ranges = copy_ranges([table], range_bytes=1 << 20)
    assert len(ranges) == table.relations[0].pages
    assert len(read(any_database, ranges)) == 400


def test_partitions_are_read_into_their_roots_form(any_database: Database) -> None:
    any_database.execute(
        "CREATE TABLE parts (id int, at int, note text, PRIMARY KEY (id, at))"
        " PARTITION BY RANGE (at)",
        "CREATE TABLE part_a PARTITION OF parts FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE part_b (gone int, note text, at int NOT NULL, id int NOT NULL)",
        "ALTER TABLE part_b DROP COLUMN gone",
        "ALTER TABLE parts ATTACH PARTITION part_b FOR VALUES FROM (10) TO (20)",
        "INSERT INTO parts SELECT n, n % 20, 'n' || n FROM generate_series(1, 200) n",
        "CREATE PUBLICATION walflow FOR TABLE parts WITH (publish_via_partition_root)",
    )
    ranges = copy_ranges(published(any_database), range_bytes=1 << 20)
    assert {piece.relation.name for piece in ranges} == {"part_a", "part_b"}
    assert {piece.table.name.name for piece in ranges} == {"parts"}
    rows = read(any_database, ranges)
    assert rows == Counter(any_database.execute("SELECT id, at, note FROM parts"))


def test_children_by_inheritance_are_not_read_twice(any_database: Database) -> None:
    any_database.execute(
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent)",
        "INSERT INTO parent VALUES (1)",
        "INSERT INTO child VALUES (2)",
        "CREATE PUBLICATION walflow FOR ALL TABLES",
    )
    rows = read(any_database, copy_ranges(published(any_database), 1 << 20))
    assert rows == Counter([(1,), (2,)])


def test_row_filters_and_column_lists_hold_for_the_copy(any_database: Database) -> None:
    if any_database.server.version < 15:
        return
    any_database.execute(
        WIDE.format(1000),
        'ALTER TABLE big ADD PRIMARY KEY (id), ADD "Flag" boolean',
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part_a PARTITION OF parts FOR VALUES FROM (0) TO (1000)",
        "INSERT INTO parts SELECT generate_series(1, 100)",
        "CREATE PUBLICATION walflow FOR TABLE big (id) WHERE (id > 900 OR id = 1),"
        " parts WHERE (id <= 3) WITH (publish_via_partition_root)",
    )
    ranges = copy_ranges(published(any_database), range_bytes=100_000)
    big = read(any_database, [piece for piece in ranges if piece.table.name.name == "big"])
    assert big == Counter([(1,), *((n,) for n in range(901, 1001))])
    parts = read(any_database, [piece for piece in ranges if piece.table.name.name == "parts"])
    assert parts == Counter([(1,), (2,), (3,)])


def test_a_range_can_be_copied_in_binary_by_a_reader(any_database: Database) -> None:
    any_database.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        'CREATE TABLE t (id int PRIMARY KEY, "Mixed Case" mood, doc jsonb, amount numeric(10,2),'
        " seen timestamptz, tags text[], place point, span int4range)",
        "INSERT INTO t (id) VALUES (1)",
        "CREATE PUBLICATION walflow FOR TABLE t",
    )
    (piece,) = copy_ranges(published(any_database), 1 << 20)
    uri = any_database.replicator("GRANT SELECT ON t TO {role}")
    with (
        connect(uri, application_name="t") as connection,
        connection.cursor().copy(f"COPY ({piece.query}) TO STDOUT (FORMAT binary)") as copy,
    ):
        data = b"".join(bytes(part) for part in copy)
    assert data.startswith(b"PGCOPY\n")
