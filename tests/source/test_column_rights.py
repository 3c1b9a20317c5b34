"""A role that may read some columns of a table, and no more, can follow these."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from tests.conftest import Database
from walflow.checks.findings import Facts, Finding, Verdict
from walflow.checks.performing import perform
from walflow.config import load_settings
from walflow.errors import NoSelectRight
from walflow.model import PageRange
from walflow.source.catalog.preflight import preflight
from walflow.source.catalog.published_tables import PublishedTable
from walflow.source.catalog.survey import survey_tables
from walflow.source.connection import Session, connect
from walflow.source.copy.key_reads import keyed_queries
from walflow.source.copy.ranges import page_ranges, range_query

PEOPLE = (
    'CREATE TABLE people (id int PRIMARY KEY, "the name" text, secret text)',
    "INSERT INTO people SELECT n, 'name ' || n, repeat('s', 500) FROM generate_series(1, 1000) n",
)
SOME = 'id, "the name"'
"""Of the columns."""


def publish_some(database: Database) -> Database:
    """People without their secrets. 14 has no column lists; there, they have none."""
    if database.server.version >= 15:
        database.execute(*PEOPLE, f"CREATE PUBLICATION p FOR TABLE people ({SOME})")
    else:
        without = ("ALTER TABLE people DROP COLUMN secret", "CREATE PUBLICATION p FOR TABLE people")
        database.execute(*PEOPLE, *without)
    return database


@pytest.fixture
def people(database: Database) -> Database:
    return publish_some(database)


@pytest.fixture
def any_people(any_database: Database) -> Database:
    return publish_some(any_database)


def refusal(uri: str) -> NoSelectRight:
    with (
        connect(uri, application_name="t") as session,
        pytest.raises(NoSelectRight) as raised,
    ):
        preflight(session, publication="p", slot="none")
    return raised.value


def grants(hint: str) -> list[str]:
    return re.findall(r"GRANT [^;]*;", hint)


def followed(session: Session) -> PublishedTable:
    (table,) = preflight(session, publication="p", slot="none").tables
    return table


def test_it_reads_what_was_granted_in_pieces_and_by_key(any_people: Database) -> None:
    uri = any_people.replicator(f"GRANT SELECT (ctid, {SOME}) ON people TO {{role}}")
    with connect(uri, application_name="t") as session:
        table = followed(session)
        assert table.schema.column_names == ("id", "the name")
        ranges = page_ranges(table, 20_000)
        assert len(ranges) > 1
        rows = [row for piece in ranges for row in session.execute(range_query(table, piece))]
        assert sorted(rows) == any_people.execute(f"SELECT {SOME} FROM people ORDER BY id")
        places = [PageRange(part.oid, 0, 1) for part in table.relations]
        queries = keyed_queries(table, [pa.array(["1", "2", "100000"])], places)
        assert sorted(row for _, query in queries for row in session.execute(query)) == rows[:2]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("SELECT xmin FROM people")


def test_columns_that_lack_the_right_are_named_with_what_to_paste(any_people: Database) -> None:
    uri = any_people.replicator("GRANT SELECT (id) ON people TO {role}")
    error = refusal(uri)
    assert "public.people (columns ctid, the name)" in error.message
    (grant,) = grants(error.hint)
    assert grant.startswith('GRANT SELECT ("ctid", "the name") ON "public"."people" TO ')
    any_people.execute(grant)
    with connect(uri, application_name="t") as session:
        assert followed(session).problem is None


def test_who_may_read_nothing_of_a_table_is_told_to_be_granted_all_of_it(people: Database) -> None:
    uri = people.replicator()
    usage, select = grants(refusal(uri).hint)
    assert usage.startswith('GRANT USAGE ON SCHEMA "public"')
    assert select.startswith('GRANT SELECT ON "public"."people"')


def test_a_closed_schema_is_all_that_is_missing(people: Database) -> None:
    uri = people.replicator(
        f"GRANT SELECT (ctid, {SOME}) ON people TO {{role}}",
        "REVOKE ALL ON SCHEMA public FROM public",
    )
    (usage,) = grants(refusal(uri).hint)
    assert usage.startswith('GRANT USAGE ON SCHEMA "public" TO ')
    people.execute(usage)
    with connect(uri, application_name="t") as session:
        assert followed(session).problem is None


def test_row_security_counts_for_columns_too(people: Database) -> None:
    people.execute("ALTER TABLE people ENABLE ROW LEVEL SECURITY")
    uri = people.replicator(f"GRANT SELECT (ctid, {SOME}) ON people TO {{role}}")
    assert "BYPASSRLS" in refusal(uri).hint


def test_every_partition_must_be_readable(database: Database) -> None:
    database.execute(
        "CREATE TABLE parts (id int PRIMARY KEY, secret text) PARTITION BY RANGE (id)",
        "CREATE TABLE part_a PARTITION OF parts FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE part_b PARTITION OF parts FOR VALUES FROM (10) TO (20)",
        "INSERT INTO parts VALUES (1), (11)",
        "CREATE PUBLICATION p FOR TABLE parts (id) WITH (publish_via_partition_root)",
    )
    uri = database.replicator("GRANT SELECT (ctid, id) ON part_a TO {role}")
    error = refusal(uri)
    assert "part_a" not in error.message
    database.execute(*grants(error.hint))
    with connect(uri, application_name="t") as session:
        table = followed(session)
        pieces = page_ranges(table, 1 << 20)
        assert sorted(
            row for piece in pieces for row in session.execute(range_query(table, piece))
        ) == [
            (1,),
            (11,),
        ]
        # Rows are read by key through the table itself.
        places = [PageRange(part.oid, 0, 1) for part in table.relations]
        ((_, query),) = keyed_queries(table, [pa.array(["1", "11"])], places)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute(query)
        database.execute(f"GRANT SELECT (ctid, tableoid, id) ON parts TO {session.info.user}")
        assert len(session.execute(query).fetchall()) == 2


def test_tables_to_choose_from_are_told_apart_by_what_would_be_published(
    people: Database,
) -> None:
    uri = people.replicator(f"GRANT SELECT (ctid, {SOME}) ON people TO {{role}}")
    with connect(uri, application_name="t") as session:
        (listed,) = survey_tables(session, "p")
        (whole,) = survey_tables(session, None)
    assert listed.unreadable == ()
    (lacks,) = whole.unreadable
    assert lacks.columns == ("secret",)


def checked(uri: str, folder: Path) -> list[Finding]:
    given = {
        "source.uri": uri,
        "source.publication": "p",
        "destination.uri": f"iceberg://{folder}/lake",
        "log.folder": folder / "log",
    }
    findings = perform(Facts(load_settings(None, given, {}), quick=True))
    return [found for found in findings if found.check == "rights"]


def test_check_tells_the_column_and_the_grant(database: Database, tmp_path: Path) -> None:
    database.execute(
        *PEOPLE,
        f"CREATE PUBLICATION p FOR TABLE people ({SOME}) WHERE (secret <> '')"
        " WITH (publish = insert)",
    )
    uri = database.replicator("GRANT SELECT (ctid, id) ON people TO {role}")
    (found,) = checked(uri, tmp_path)
    assert found.verdict is Verdict.ERROR
    assert "public.people (columns the name)" in found.message
    database.execute(*grants(found.hint))
    # What rows are chosen by must be readable, too: it is tried.
    found, _ = checked(uri, tmp_path)
    assert (found.verdict, found.code) == (Verdict.ERROR, "NoSelectRight")
    role = psycopg.conninfo.conninfo_to_dict(uri)["user"]
    database.execute(f"GRANT SELECT (secret) ON people TO {role}")
    (found,) = checked(uri, tmp_path)
    assert found.verdict is Verdict.OK
