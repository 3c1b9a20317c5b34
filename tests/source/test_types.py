"""Types of every kind, resolved by what the catalog says."""

from __future__ import annotations

import pytest

from tests.conftest import Database
from walflow.source.catalog.types import TypeCatalog
from walflow.source.connection import Session, connect

INT4, TEXT, NUMERIC, BOX = 23, 25, 1700, 603
TEXT_ARRAY, NUMERIC_ARRAY = 1009, 1231


def oid_of(connection: Session, name: str) -> int:
    row = connection.execute("SELECT %s::regtype::oid", [name]).fetchone()
    assert row is not None
    return int(row[0])


def modifier(precision: int, scale: int) -> int:
    return ((precision << 16) | scale) + 4


def test_builtin_types_and_arrays(any_database: Database) -> None:
    with connect(any_database.replicator(), application_name="t") as connection:
        types = TypeCatalog(connection)
        plain = types.resolve(NUMERIC, modifier(12, 2))
        assert (plain.name, plain.base, plain.typmod) == ("numeric(12,2)", NUMERIC, modifier(12, 2))
        many = types.resolve(NUMERIC_ARRAY, modifier(12, 2))
        assert many.name == "numeric(12,2)[]"
        assert many.element == plain
        boxes = types.resolve(oid_of(connection, "box[]"))
        assert boxes.delimiter == ";"
        assert types.resolve(TEXT_ARRAY).delimiter == ","
        for name in ("int2vector", "oidvector", "name", "point", "jsonb", "tsvector"):
            assert types.resolve(oid_of(connection, name)).element is None


def test_domains_are_resolved_to_what_their_values_look_like(any_database: Database) -> None:
    any_database.execute(
        "CREATE DOMAIN cents AS numeric(12,2)",
        "CREATE DOMAIN price AS cents CHECK (VALUE > 0)",
        "CREATE DOMAIN tags AS text[]",
        "CREATE DOMAIN prices AS price[]",
    )
    with connect(any_database.replicator(), application_name="t") as connection:
        types = TypeCatalog(connection)
        price = types.resolve(oid_of(connection, "price"))
        assert (price.name, price.base, price.typmod) == ("price", NUMERIC, modifier(12, 2))
        tags = types.resolve(oid_of(connection, "tags"))
        assert tags.base == TEXT_ARRAY
        assert tags.element == types.resolve(TEXT)
        prices = types.resolve(oid_of(connection, "prices"))
        assert prices.element == price


def test_enums_composites_and_ranges_are_themselves(any_database: Database) -> None:
    any_database.execute(
        "CREATE SCHEMA other",
        "CREATE TYPE other.mood AS ENUM ('sad', 'happy')",
        "CREATE TYPE place AS (x int, y text)",
        "CREATE TYPE span AS RANGE (subtype = int8)",
        "CREATE TABLE t (id int)",
    )
    with connect(any_database.uri, application_name="t") as connection:
        types = TypeCatalog(connection)
        for name in ("other.mood", "place", "span", "t", "int4multirange"):
            found = types.resolve(oid_of(connection, name))
            assert found.base == found.oid
            assert found.element is None
            assert found.name == name
        moods = types.resolve(oid_of(connection, "other.mood[]"))
        assert moods.element == types.resolve(oid_of(connection, "other.mood"))


def test_types_of_extensions(any_database: Database) -> None:
    available = any_database.execute(
        "SELECT name FROM pg_available_extensions WHERE name IN ('hstore', 'ltree', 'citext')"
    )
    if len(available) < 3:
        pytest.skip(
            f"this build of Postgres {any_database.server.version} has no contrib; the builds of"
            " tests/fetch_postgres.py have"
        )
    for (name,) in available:
        any_database.execute(f"CREATE EXTENSION {name}")
    with connect(any_database.replicator(), application_name="t") as connection:
        types = TypeCatalog(connection)
        for (name,) in available:
            oid = oid_of(connection, name)
            assert types.resolve(oid).base == oid
            many = types.resolve(oid_of(connection, f"{name}[]"))
            assert many.element == types.resolve(oid)


def test_a_type_that_was_dropped_still_resolves(any_database: Database) -> None:
    with connect(any_database.replicator(), application_name="t") as connection:
        gone = TypeCatalog(connection).resolve(4_000_000_000)
    assert gone.base == gone.oid == 4_000_000_000
    assert gone.element is None


def test_known_types_are_not_asked_for_again(database: Database) -> None:
    with connect(database.uri, application_name="t") as connection:
        types = TypeCatalog(connection)
        types.load([(INT4, -1), (NUMERIC_ARRAY, modifier(5, 1)), (BOX, -1)])
    # The session is closed: only what is known can be resolved.
    assert types.resolve(INT4).name == "integer"
    assert types.resolve(NUMERIC_ARRAY, modifier(5, 1)).element is not None
