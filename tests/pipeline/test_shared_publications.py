"""A publication that several read is not dropped under any of them."""

from __future__ import annotations

import subprocess
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Database
from tests.destinations.reference import reading_session
from tests.pipeline.capturing import wait_for
from tests.pipeline.running import WAIT, running, settings_for
from walflow.config import Settings
from walflow.pipeline.drop import Remains, drop_pipeline, find_remains
from walflow.pipeline.state.pipeline_notes import remove_notes
from walflow.source.catalog.publication import create_publication
from walflow.stores import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUBLICATIONS = "SELECT pubname::text FROM pg_publication ORDER BY 1"


def dropped(settings: Settings) -> tuple[Remains, list[str]]:
    """What was found of the pipeline, and what was told while it was dropped."""
    told: list[str] = []
    with closing(open_store(settings)) as store:
        found = find_remains(settings, store, keep_tables=True)
        drop_pipeline(settings, store, found, tell=told.append)
    return found, told


def shop_of(database: Database, folder: Path, publication: str) -> Settings:
    """A pipeline with a publication that walflow made for it."""
    settings = settings_for(
        database, folder, "shop-log", name="shop", source__publication=publication
    )
    with database.connect() as connection:
        create_publication(connection, publication, (), pipeline="shop")
    return settings


def make_slot(database: Database, slot: str) -> None:
    database.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")


@pytest.mark.parametrize("written", ["walflow_shop", "Walflow_Shop, other", '"walflow_shop"'])
def test_a_reader_that_is_connected_keeps_it(
    database: Database, tmp_path: Path, written: str
) -> None:
    """However it writes the name: without quotes, Postgres reads letters as small ones."""
    shop = shop_of(database, tmp_path, "walflow_shop")
    slot = f"reader_{database.name}"
    make_slot(database, slot)
    command: list[str | Path] = [database.server.pg_recvlogical, "-d", database.uri]
    command += ["-S", slot, "--start", "-f", "/dev/null", "-o", "proto_version=1"]
    reader = subprocess.Popen([*command, "-o", f"publication_names={written}"])
    try:
        active = f"SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'"
        wait_for(lambda: database.execute(active) == [(True,)], WAIT, "the slot is read")
        found, told = dropped(shop)
        assert (found.publication, found.shared, found.users) == (None, "walflow_shop", (slot,))
        # It is no pipeline, which could drop it one day.
        assert found.heir == ""
        assert "left the publication walflow_shop, which others may read" in told
    finally:
        reader.terminate()
        reader.wait(WAIT)
    assert database.execute(PUBLICATIONS) == [("walflow_shop",)]


def test_a_reader_of_another_one_does_not_keep_it(database: Database, tmp_path: Path) -> None:
    shop = shop_of(database, tmp_path, "walflow_shop")
    make_slot(database, f"reader_{database.name}")
    assert dropped(shop)[0].publication == "walflow_shop"
    assert database.execute(PUBLICATIONS) == []


def test_it_is_left_to_a_pipeline_and_not_to_whoever_reads_it_too(
    database: Database, tmp_path: Path
) -> None:
    shop = shop_of(database, tmp_path, "walflow")
    ours = f"walflow_bi_{database.name}"
    for slot in (f"a_subscription_{database.name}", ours):
        make_slot(database, slot)
    found, told = dropped(shop)
    assert found.users == (f"a_subscription_{database.name}", ours)
    heir = ours.removeprefix("walflow_")
    assert f"left the publication walflow to the pipeline {heir}" in told


@pytest.mark.spark
def test_one_pipeline_is_dropped_and_the_other_goes_on(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    """Both are of a version that noted nothing, and neither runs."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    shop = shop_of(database, tmp_path, "walflow")
    bi = settings_for(
        database,
        tmp_path,
        "bi-log",
        name="bi",
        source__slot=f"bi_{database.name}",
        source__publication="walflow",
    )
    make_slot(database, shop.slot)
    with running(bi, spark):
        pass
    remove_notes(bi.log_folder)
    found, _ = dropped(shop)
    assert (found.slot, found.users) == (shop.slot, (bi.slot,))
    database.execute("INSERT INTO t VALUES (2)")
    with running(bi, spark):
        rows = reading_session(spark, tmp_path / "lake").table("lake.public.t").select("id")
        assert sorted(row.id for row in rows.collect()) == [1, 2]
