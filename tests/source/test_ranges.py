"""Ranges: together they read every published row once, and each reads only its own pages."""

from __future__ import annotations

from collections import Counter

from tests.conftest import Database
from walflow.config import TypeSettings
from walflow.source.catalog.published_tables import PublishedTable, published_tables
from walflow.source.connection import connect
from walflow.source.copy.ranges import page_ranges, range_query

WIDE = "CREATE TABLE big AS SELECT n AS id, repeat('x', 300) AS pad FROM generate_series(1, {}) n"


def published(database: Database) -> list[PublishedTable]:
    with connect(database.uri, application_name="t") as connection:
        return published_tables(connection, "walflow", TypeSettings())


def cut(database: Database, range_bytes: int) -> dict[str, list[str]]:
    """The queries of each table's ranges."""
    return {
        table.name.name: [range_query(table, pages) for pages in page_ranges(table, range_bytes)]
        for table in published(database)
    }


def read(database: Database, queries: list[str]) -> Counter[tuple[object, ...]]:
    rows: Counter[tuple[object, ...]] = Counter()
    for query in queries:
        rows.update(database.execute(query))
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
    ranges = {table.name.name: page_ranges(table, 200_000) for table in published(any_database)}
    assert len(ranges["big"]) > 5
    assert len(ranges["small"]) == len(ranges["empty"]) == 1
    for each in ranges.values():
        assert [piece.bytes for piece in each] == sorted(
            (piece.bytes for piece in each), reverse=True
        )
    big = ranges["big"]
    rows = read(any_database, cut(any_database, 200_000)["big"])
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
    queries = cut(any_database, 100_000)
    any_database.execute(
        "INSERT INTO big SELECT n, repeat('z', 300) FROM generate_series(1001, 2000) n",
        "INSERT INTO empty VALUES (1)",
    )
    rows = read(any_database, queries["big"])
    assert len(rows) == 2000
    assert set(rows.values()) == {1}
    (empty,) = queries["empty"]
    assert any_database.execute(empty) == [(1,)]


def test_a_range_reads_only_its_pages(any_database: Database) -> None:
    any_database.execute(
        WIDE.format(5000),
        "ALTER TABLE big ADD PRIMARY KEY (id)",
        "CREATE PUBLICATION walflow FOR TABLE big",
        "ANALYZE big",
    )
    queries = cut(any_database, 200_000)["big"]
    assert len(queries) > 3
    for query in queries:
        plan = "\n".join(line for (line,) in any_database.execute(f"EXPLAIN {query}"))
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
    queries = cut(any_database, 1 << 20)["fat"]
    assert len(queries) == table.relations[0].pages
    assert len(read(any_database, queries)) == 400


def test_partitions_are_read_into_their_roots_schema(any_database: Database) -> None:
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
    (table,) = published(any_database)
    relations = {table.relation(pages.relation).name.name for pages in page_ranges(table, 1 << 20)}
    assert relations == {"part_a", "part_b"}
    rows = read(any_database, cut(any_database, 1 << 20)["parts"])
    assert rows == Counter(any_database.execute("SELECT id, at, note FROM parts"))


def test_children_by_inheritance_are_not_read_twice(any_database: Database) -> None:
    any_database.execute(
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent)",
        "INSERT INTO parent VALUES (1)",
        "INSERT INTO child VALUES (2)",
        "CREATE PUBLICATION walflow FOR ALL TABLES",
    )
    queries = cut(any_database, 1 << 20)
    rows = read(any_database, [*queries["parent"], *queries["child"]])
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
    queries = cut(any_database, 100_000)
    big = read(any_database, queries["big"])
    assert big == Counter([(1,), *((n,) for n in range(901, 1001))])
    parts = read(any_database, queries["parts"])
    assert parts == Counter([(1,), (2,), (3,)])


def test_a_range_can_be_copied_in_binary_by_a_reader(any_database: Database) -> None:
    any_database.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        'CREATE TABLE t (id int PRIMARY KEY, "Mixed Case" mood, doc jsonb, amount numeric(10,2),'
        " seen timestamptz, tags text[], place point, span int4range)",
        "INSERT INTO t (id) VALUES (1)",
        "CREATE PUBLICATION walflow FOR TABLE t",
    )
    (query,) = cut(any_database, 1 << 20)["t"]
    uri = any_database.replicator("GRANT SELECT ON t TO {role}")
    with (
        connect(uri, application_name="t") as connection,
        connection.cursor().copy(f"COPY ({query}) TO STDOUT (FORMAT binary)") as copy,
    ):
        data = b"".join(bytes(part) for part in copy)
    assert data.startswith(b"PGCOPY\n")
