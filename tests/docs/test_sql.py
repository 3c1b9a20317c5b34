"""SQL on the docs' pages does what they say; above all, the role with few rights has all that a
pipeline needs, and no more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.conftest import Database
from walflow.errors import NoReplicationRight, NoSelectRight
from walflow.source.catalog.preflight import preflight
from walflow.source.connection import connect

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"


def _blocks(page: str) -> list[str]:
    text = (HOW_TO / page).read_text(encoding="utf-8")
    return re.findall(r"^ *```sql\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)


CREATE, GRANT, COLUMNS, REMOVE = _blocks("least-privilege.md")


@pytest.fixture
def shop(database: Database) -> Iterator[Database]:
    database.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY)",
        "CREATE TABLE items (id bigint PRIMARY KEY)",
        "CREATE TABLE people (id bigint PRIMARY KEY, name text, secret text)",
    )
    yield database
    if database.execute("SELECT FROM pg_roles WHERE rolname = 'walflow'"):
        database.execute("DROP OWNED BY walflow", "DROP ROLE walflow")


def _uri(shop: Database) -> str:
    return shop.server.uri_for(shop.name, user="walflow", password="choose-one")


def _published(shop: Database) -> dict[str, tuple[str, ...]]:
    """The tables that the role can follow, with columns; raises what keeps it from that."""
    with connect(_uri(shop), application_name="test") as session:
        found = preflight(session, publication="walflow", slot="least")
    return {str(table.name): table.schema.column_names for table in found.tables}


def test_the_role_can_do_what_a_pipeline_needs(shop: Database) -> None:
    shop.execute(CREATE.replace("REPLICATION", ""), GRANT)
    with pytest.raises(NoReplicationRight):
        _published(shop)
    shop.execute("ALTER ROLE walflow REPLICATION")
    assert set(_published(shop)) == {"public.orders", "public.items"}
    # Tables that come later can be read, and nothing can be written.
    shop.execute("CREATE TABLE later (id bigint PRIMARY KEY)")
    shop.execute("ALTER PUBLICATION walflow ADD TABLE later")
    assert "public.later" in _published(shop)
    with (
        psycopg.connect(_uri(shop), autocommit=True) as session,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        session.execute("INSERT INTO orders VALUES (1)")
    shop.execute(REMOVE)
    assert shop.execute("SELECT FROM pg_roles WHERE rolname = 'walflow'") == []


def test_columns_can_be_kept_from_it(shop: Database) -> None:
    if shop.server.version < 15:
        pytest.skip("publications have column lists since Postgres 15; run: make postgres")
    publish, grant = COLUMNS.strip().splitlines()
    shop.execute(CREATE, publish)
    with pytest.raises(NoSelectRight):
        _published(shop)
    shop.execute(grant)
    assert _published(shop) == {"public.people": ("id", "name")}
    with (
        psycopg.connect(_uri(shop), autocommit=True) as session,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        session.execute("SELECT secret FROM people")


def test_the_slots_can_be_watched(shop: Database) -> None:
    (watch,) = _blocks("monitor.md")
    slot = f"{shop.name}_watched"
    shop.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    (found,) = [row for row in shop.execute(watch) if row[0] == slot]
    assert found[1:3] == (False, "reserved")
    assert found[3].endswith(("bytes", "kB", "MB"))
