"""Iceberg tables in catalogs that are servers: a database by JDBC, and REST."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import Mock

import pytest

from tests.conftest import Database
from tests.destinations.conftest import OWNER
from tests.destinations.reference import Source
from tests.destinations.test_lake_catalogs import (
    KEYED,
    NAME,
    Lake,
    insert_update_delete,
    shown_in_cut,
    truncate,
)
from tests.spark.rest_catalog import serving_catalog
from walflow.destinations.iceberg.columnar import IcebergTable
from walflow.destinations.iceberg.tables import make_namespace
from walflow.destinations.lake.consistent_cuts import cuts_table
from walflow.evolution import evolution
from walflow.model import TableName
from walflow.spark.jars import Package, find_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER = Package(
    "org.postgresql:postgresql:42.7.8",
    ("postgresql-42.7.8.jar",),
    ("org.checkerframework:*",),
)
OTHER = TableName("public", "other")


@pytest.fixture
def jdbc(spark: SparkSession, database: Database) -> Mapping[str, str]:
    """A catalog in a fresh database."""
    (jar,) = find_jars([DRIVER])
    jvm: Any = spark._jvm
    # As spark.jars would, but the session is there already.
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    loader.addURL(jvm.java.io.File(str(jar)).toURI().toURL())
    jvm.java.lang.Class.forName("org.postgresql.Driver", True, loader)
    return {
        "type": "jdbc",
        "uri": f"jdbc:postgresql://127.0.0.1:{database.server.port}/{database.name}",
        "jdbc.user": database.server.user,
        "jdbc.password": database.server.password,
        "jdbc.schema-version": "V1",
    }


@pytest.fixture(params=["jdbc", "rest"])
def options(
    request: pytest.FixtureRequest, spark: SparkSession, jdbc: Mapping[str, str], tmp_path: Path
) -> Iterator[Mapping[str, str]]:
    if request.param == "jdbc":
        yield jdbc
        return
    served = {
        **jdbc,
        "warehouse": str(tmp_path / "warehouse"),
        "unique-table-location": "true",
    }
    with serving_catalog(spark, served) as address:
        # By its class, as it can be said too.
        yield {"catalog-impl": "org.apache.iceberg.rest.RESTCatalog", "uri": address}


@pytest.mark.spark
def test_from_the_copy_to_the_end(
    spark: SparkSession,
    options: Mapping[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake = Lake(spark, tmp_path, options)
    lake.fill()
    lake.batch(insert_update_delete)
    lake.batch(truncate)
    assert len(shown_in_cut(lake)) == len(lake.source.rows)

    change_schema(lake)
    lake.batch(lambda s: s.update(s.find(id=1), text="renamed", extra=1))

    lake.start()
    lake.check()
    commit = Mock(wraps=IcebergTable.commit)
    monkeypatch.setattr(IcebergTable, "commit", lambda *given: commit(*given))
    lake.batch(lambda s: s.update(s.find(id=1), id=20, text="x"))
    assert commit.call_count == 1, "the batch was left to Spark"

    schema = lake.source.schema
    assert lake.destination.rename(schema, OTHER)
    lake.source.schema = schema = replace(schema, name=OTHER)
    lake.check()
    cuts = cuts_table(OWNER.pipeline)
    assert lake.destination.own_tables() == [cuts, OTHER]
    lake.destination.drop(schema)
    assert lake.destination.own_tables() == [cuts]
    assert not list(lake.warehouse.glob("public/**/*.parquet"))
    lake.destination.shutdown()


def change_schema(lake: Lake) -> None:
    """One column gets another name, one is new."""
    before = replace(KEYED, filenodes=frozenset({1}))
    columns = {column.name: column for column in before.columns}
    renamed, new = (
        replace(columns["a"], name="text"),
        replace(columns["n"], name="extra", attnum=9),
    )
    after = replace(before, columns=(columns["id"], renamed, columns["b"], columns["n"], new))
    lake.destination.evolve(evolution(before, after, trust_rewrites=False))
    source = Source(after, lake.warehouse.parent / "log")
    source._lsn, source._cut = lake.source._lsn, lake.source._cut
    source.rows = [
        {"text" if name == "a" else name: value for name, value in row.items()} | {"extra": None}
        for row in lake.source.rows
    ]
    lake.source = source
    lake.check()


@pytest.mark.spark
def test_a_server_that_calls_folders_as_tables_are_called(
    spark: SparkSession, jdbc: Mapping[str, str], tmp_path: Path
) -> None:
    served = {**jdbc, "warehouse": str(tmp_path / "warehouse")}
    with serving_catalog(spark, served) as address:
        lake = Lake(spark, tmp_path, {"type": "rest", "uri": address})
        lake.fill()
        # The next table of its name would come into its folder, too.
        assert (lake.warehouse / "public" / "t").is_dir()
        assert not lake.destination.rename(KEYED, OTHER)
        lake.check()
        assert lake.destination.own_tables() == [NAME]
        lake.destination.shutdown()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_namespace_that_another_makes_at_the_same_moment(is_there: bool) -> None:
    def refuse(query: str) -> None:
        raise RuntimeError("duplicate key value violates unique constraint")

    catalog = SimpleNamespace(databaseExists=lambda name: is_there)
    session = cast("SparkSession", SimpleNamespace(sql=refuse, catalog=catalog))
    if is_there:
        make_namespace(session, NAME)
    else:
        with pytest.raises(RuntimeError, match="duplicate key"):
            make_namespace(session, NAME)
