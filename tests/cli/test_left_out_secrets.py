"""Secrets are noted nowhere, and a command that needs one which was not noted says so."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.stored import opened, put_table
from tests.conftest import Database
from walflow.cli import _exit_code
from walflow.config import Settings, load_settings
from walflow.destinations import place_of
from walflow.destinations.base import ConsistentCut
from walflow.destinations.lake.consistent_cuts import RecordedTable
from walflow.destinations.lake.noted_cuts import NotedCuts
from walflow.model import Lsn, Phase, TableName
from walflow.pipeline.state.pipeline_notes import write_notes

CATALOG = {"type": "jdbc", "uri": "jdbc:postgresql://u:hush@127.0.0.1:1/db", "token": "hush"}
QUERY = "SELECT * FROM lake.public.orders VERSION AS OF 7"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def ran(settings: Settings) -> Path:
    """What a run leaves beside the log; gives the folder."""
    folder = settings.log_folder
    folder.mkdir(parents=True, exist_ok=True)
    write_notes(settings.with_publication(settings.publication), "7/shop")
    orders = TableName("public", "orders")
    cut = ConsistentCut(Lsn(1), Lsn(2), None, ())
    kept = RecordedTable(orders, orders, 7, Lsn(2))
    noted, now = NotedCuts(settings.cuts_file, place_of(settings)), time.time()
    noted.record(cut, {kept: QUERY}, now, now + 3600)
    with opened(folder) as store:
        put_table(store, 1, "public.orders", Phase.READY)
    return folder


def shop(**more: Any) -> Settings:
    said = {
        "name": "shop",
        "source.uri": "postgresql://me:hush@127.0.0.1:1/shop",
        "destination.uri": "iceberg:///lake",
        "destination.options": CATALOG,
        **more,
    }
    return load_settings(None, said, {})


def told(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


def test_no_file_beside_the_log_has_a_secret(home: Path) -> None:
    folder = ran(shop(**{"spark.conf": {"spark.hadoop.fs.s3a.secret.key": "hush"}}))
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert {"cuts.db", "pipeline.json", "state.db"} <= {file.name for file in files}
    assert [file for file in files if b"hush" in file.read_bytes()] == []


def test_what_is_noted_answers_without_the_secrets(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran(shop())
    assert _exit_code(["as-of", "--name", "shop"]) == 0
    assert f"{QUERY};" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["as-of"], ["drop", "--yes"]])
def test_a_command_that_needs_a_secret_names_it(
    home: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    folder = ran(shop())
    (folder / "cuts.db").unlink()
    assert _exit_code([*command, "--name", "shop"]) == 2
    said = told(capsys)
    assert "pipeline shop was given destination.options.uri, destination.options.token" in said
    assert "What to do: Name the pipeline's settings file" in said
    assert "Starting Spark" not in said


def test_the_place_of_a_destination_that_has_a_secret(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran(shop(**{"destination.uri": "mine://me:hush@host", "destination.options": {}}))
    assert _exit_code(["drop", "--yes", "--name", "shop"]) == 2
    assert "was given destination.uri with a secret" in told(capsys)


WEB = {"destination.uri": "https://host/rows", "destination.options": {"token": "hush"}}


@pytest.mark.parametrize(("more", "options"), [({}, ["--keep-tables"]), (WEB, [])])
def test_a_drop_that_drops_no_tables_needs_none_of_them(
    home: Path, capsys: pytest.CaptureFixture[str], more: dict[str, Any], options: list[str]
) -> None:
    ran(shop(**more))
    # The source is away: that comes next.
    assert _exit_code(["drop", "--yes", "--name", "shop", *options]) == 11
    assert "destination.options" not in told(capsys)


def test_the_sources_password_is_not_needed_to_look_into_the_lake(
    home: Path,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = home / "shop.yaml"
    ends = ["--from", database.uri, "--to", f"iceberg://{home / 'lake'}"]
    assert _exit_code(["init", str(file), "--name", "shop", *ends]) == 0
    (variable,) = (
        line.split()[1].rstrip("=…")
        for line in capsys.readouterr().err.splitlines()
        if line.strip().startswith("export ")
    )
    assert f"${{{variable}}}" in file.read_text()
    ran(load_settings(file, {}, {variable: database.server.password}))
    monkeypatch.delenv(variable, raising=False)
    assert _exit_code(["as-of", str(file)]) == 0
    assert f"{QUERY};" in capsys.readouterr().out
    assert _exit_code(["drop", str(file), "--yes"]) == 2
    assert variable in told(capsys)
