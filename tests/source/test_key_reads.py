"""Keys as texts: rows are told apart by them, and found again by them, once each."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet
import pytest

from tests.conftest import Database
from walflow.config import TypeSettings
from walflow.model import PageRange
from walflow.source.catalog.published_tables import PublishedTable, published_tables
from walflow.source.connection import Session, connect
from walflow.source.copy import key_reads
from walflow.source.copy.key_reads import (
    can_be_read_by_key,
    identities,
    keyed_queries,
    texts_of_rows,
)
from walflow.source.copy.range_copy import copy_queries, copy_query, filter_file
from walflow.source.copy.ranges import page_ranges, range_query

KEYS = {
    "smallint": "SELECT generate_series(-5, 5)",
    "bigint": "VALUES (-9223372036854775808), (0), (9223372036854775807)",
    "boolean": "VALUES (true), (false)",
    "text": r"VALUES (''), (' '), (E'it''s'), (E'a\\b'), (E'\\''x'), (E'tab\t\nline'), ('ünïcode'),"
    " ('NULL'), (chr(31)), ('$1'), ('%s')",
    "varchar(9)": "VALUES ('a'), ('A'), ('a ')",
    "character(5)": "VALUES ('a'), ('ab'), (' ab')",
    "name": "VALUES ('a'), ('B')",
    "uuid": "SELECT md5(n::text)::uuid FROM generate_series(1, 5) n",
    "date": "VALUES (date '2024-02-29'), ('0001-01-01'), ('9999-12-31'), ('infinity'),"
    " ('-infinity'), ('0044-03-15 BC'), ('10000-01-01')",
    "timestamp": "VALUES (timestamp '2024-02-29 01:02:03.000004'), ('0001-01-01'), ('infinity'),"
    " ('9999-12-31 23:59:59.999999'), ('294276-01-01'), ('0044-03-15 12:00 BC')",
    "timestamptz": "VALUES (timestamptz '2024-02-29 01:02:03.5+05'), ('-infinity'),"
    " ('0044-03-15 12:00+00 BC')",
    "timestamp(0)": "VALUES (timestamp '2024-02-29 01:02:03'), ('1999-01-01')",
    "numeric": "VALUES (1.5), (0), (-0.000000000000000000001), (1e100), ('NaN'),"
    " (123456789012345678901234567890.123456789), (0.1)",
    "numeric(12,2)": "VALUES (1.50), (-99.99), ('NaN'), (0)",
    "bytea": r"VALUES (''::bytea), ('\x00ff'), ('\x27'), ('abc')",
    "mood": "VALUES ('sad'::mood), ('it''s')",
    "positive": "VALUES (1), (20)",
    "inet": "VALUES (inet '10.0.0.1'), ('10.0.0.0/8'), ('::1')",
    "interval": "VALUES (interval '1 day 02:00:00.5'), ('-3 months')",
    "time": "VALUES (time '01:02:03.5'), ('24:00')",
    "bit(3)": "VALUES (b'101'), (b'000')",
    "int4range": "VALUES (int4range(1, 5)), ('empty')",
    "oid": "VALUES (1::oid), (4294967295)",
    "jsonb": """VALUES ('{"a": "it''s"}'::jsonb), ('[]')""",
}


def published(database: Database) -> list[PublishedTable]:
    with connect(database.uri, application_name="t") as connection:
        return published_tables(connection, "p", TypeSettings())


def copied(session: Session, table: PublishedTable, path: Path) -> pa.Table:
    (pages,) = page_ranges(table, 1 << 30)
    assert copy_query(session, range_query(table, pages), table.schema, path) is not None
    return parquet.read_table(path)


def rows_of(table: pa.Table) -> Counter[str]:
    return Counter(str(row) for row in table.to_pylist())


def test_rows_are_found_by_their_keys(
    any_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_reads, "KEYS_A_QUERY", 3)
    any_database.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'it''s')",
        "CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
    )
    for number, (name, values) in enumerate(KEYS.items()):
        any_database.execute(
            f"CREATE TABLE k{number:02} (id {name} PRIMARY KEY, name text)",
            f"INSERT INTO k{number:02} SELECT v, v::text FROM ({values}) AS t (v)",
        )
    any_database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    with connect(any_database.uri, application_name="t") as session:
        for table, name in zip(published(any_database), KEYS, strict=True):
            assert can_be_read_by_key(table.schema)
            rows = copied(session, table, tmp_path / "rows")
            texts = texts_of_rows(table.schema.key_columns, rows)
            mine = identities(texts)
            assert len(mine) == len(set(mine.to_pylist())) == rows.num_rows, name
            queries = [query for _, query in keyed_queries(table, texts, [anywhere(table)])]
            assert len(queries) == -(-rows.num_rows // 3)
            path = tmp_path / "found"
            found = copy_queries(session, queries, table.schema, path)
            assert found is not None, name
            assert rows_of(parquet.read_table(path)) == rows_of(rows), name


def anywhere(table: PublishedTable) -> PageRange:
    return PageRange(table.relations[0].oid, 0, None)


def test_keys_that_cannot_be_written(any_database: Database) -> None:
    for number, name in enumerate(("real", "double precision", "int[]", '"char"')):
        any_database.execute(f"CREATE TABLE k{number} (a int, id {name}, PRIMARY KEY (a, id))")
    any_database.execute("CREATE TABLE keyless (id int)", "CREATE PUBLICATION p FOR ALL TABLES")
    tables = published(any_database)
    assert len(tables) == 5
    assert not any(can_be_read_by_key(table.schema) for table in tables)


def test_composite_keys_do_not_run_into_each_other() -> None:
    left = pa.array(["a", "a:1", "", "1:a", "ab", "a"])
    right = pa.array(["1:b", "b", "1:a", "", "c", "bc"])
    assert len(set(identities([left, right]).to_pylist())) == len(left)


def test_only_the_given_pages_of_the_table_itself_are_read_by_its_index(
    any_database: Database, tmp_path: Path
) -> None:
    any_database.execute(
        "CREATE TABLE t (a int, b text, pad text, PRIMARY KEY (b, a))",
        "INSERT INTO t SELECT n, 'b' || n, repeat('x', 300) FROM generate_series(1, 5000) n",
        "CREATE TABLE child () INHERITS (t)",
        "INSERT INTO child VALUES (1, 'b1', 'of the child')",
        "CREATE PUBLICATION p FOR TABLE ONLY t",
    )
    (table,) = published(any_database)
    oid = table.relations[0].oid
    with connect(any_database.uri, application_name="t") as session:
        rows = copied(session, table, tmp_path / "rows").slice(0, 1000)
        texts = texts_of_rows(table.schema.key_columns, rows)
        places = [
            PageRange(oid, 20, 30),
            PageRange(oid, 5, 10),
            PageRange(oid, 10, 12),
            PageRange(oid, 40, None),
        ]
        ((_, query),) = keyed_queries(table, texts, places)
        expected = session.execute(
            "SELECT a, b, pad FROM ONLY t WHERE a = ANY(%s) AND"
            " (ctid >= '(5,0)' AND ctid < '(12,0)' OR ctid >= '(20,0)' AND ctid < '(30,0)'"
            "  OR ctid >= '(40,0)')",
            [rows.column("a").to_pylist()],
        ).fetchall()
        assert 100 < len(expected) < 1000
        assert query.count("ctid >=") == 3
        assert Counter(session.execute(query).fetchall()) == Counter(expected)
        session.execute("SET enable_seqscan = off; SET enable_tidscan = off")
        plan = "\n".join(line for (line,) in session.execute(f"EXPLAIN {query}"))
        assert "Index Scan" in plan or "Bitmap Index Scan" in plan, plan
        assert "Seq Scan" not in plan, plan


def test_partitions_and_row_filters(any_database: Database, tmp_path: Path) -> None:
    filtered = any_database.server.version >= 15
    any_database.execute(
        "CREATE TABLE parts (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)",
        "CREATE TABLE part_a PARTITION OF parts FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE part_b (note text, id int NOT NULL)",
        "ALTER TABLE parts ATTACH PARTITION part_b FOR VALUES FROM (100) TO (200)",
        "INSERT INTO parts SELECT n, 'n' || n FROM generate_series(0, 199) n",
        "CREATE PUBLICATION p FOR TABLE parts"
        + (" WHERE (id <> 60 AND id <> 160)" if filtered else "")
        + " WITH (publish_via_partition_root)",
    )
    (table,) = published(any_database)
    oids = {relation.name.name: relation.oid for relation in table.relations}
    texts = [pa.array([str(n) for n in range(50, 300)])]
    left_out = {60, 160} if filtered else set()
    with connect(any_database.uri, application_name="t") as session:
        for places, expected in (
            ([PageRange(oids["part_b"], 0, None)], range(100, 200)),
            ([PageRange(oid, 0, None) for oid in oids.values()], range(50, 200)),
            ([PageRange(oids["part_a"], 1, None)], range(0)),
        ):
            ((_, query),) = keyed_queries(table, texts, places)
            found = session.execute(query).fetchall()
            assert sorted(n for n, _ in found) == sorted(set(expected) - left_out)


def test_files_lose_the_rows_of_some_keys(any_database: Database, tmp_path: Path) -> None:
    any_database.execute(
        "CREATE TABLE t (day date, id int, doc text, PRIMARY KEY (day, id))",
        "INSERT INTO t SELECT 'infinity', n, repeat('x', n) FROM generate_series(1, 100) n",
        "INSERT INTO t SELECT '9999-12-31', n, repeat('y', n) FROM generate_series(1, 100) n",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    (table,) = published(any_database)
    columns = table.schema.key_columns
    with connect(any_database.uri, application_name="t") as session:
        rows = copied(session, table, tmp_path / "rows.parquet")
    gone = rows.filter(pc.and_(pc.starts_with(rows["doc"], "x"), pc.less(rows["id"], 10)))
    touched = identities(texts_of_rows(columns, gone))

    def without(keys: pa.Array, name: str) -> tuple[int, str] | None:
        def keep(part: pa.Table) -> pa.Array:
            assert part.column_names == ["day", "id", "_exact"]
            return pc.invert(pc.is_in(identities(texts_of_rows(columns, part)), value_set=keys))

        made = filter_file(
            tmp_path / "rows.parquet", tmp_path / name, keep, ["day", "id", "_exact"]
        )
        return None if made is None else (made.rows, made.name)

    # The same date as it is held, but not the same day.
    assert gone.num_rows == 9
    assert without(touched, "some.parquet") == (191, "some.parquet")
    left = parquet.read_table(tmp_path / "some.parquet")
    assert rows_of(left) + rows_of(gone) == rows_of(rows)
    assert without(touched.slice(0, 0), "none.parquet") == (200, "rows.parquet")
    assert without(identities(texts_of_rows(columns, rows)), "all.parquet") is None
    assert {path.name for path in tmp_path.iterdir()} == {"rows.parquet", "some.parquet"}
