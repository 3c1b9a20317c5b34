"""``walflow drop`` of a pipeline that is known from its last start, by its name or its log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.stored import opened, put_table
from tests.conftest import Database
from walflow.cli import _exit_code
from walflow.config import Settings, load_settings
from walflow.model import Phase
from walflow.pipeline.state.pipeline_notes import write_notes
from walflow.source.catalog.publication import create_publication

LEFT = (
    "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database()"
    " UNION ALL SELECT pubname::text FROM pg_publication ORDER BY 1"
)


@pytest.fixture
def shop(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A pipeline that ran, and follows a publication that its settings do not name."""
    monkeypatch.setenv("HOME", str(tmp_path))
    said = {
        "name": "shop",
        "source.uri": database.uri,
        "source.slot": f"{database.name}_slot",
        "destination.uri": f"iceberg://{tmp_path / 'lake'}",
    }
    settings = load_settings(None, said, {})
    with database.connect() as connection:
        create_publication(connection, "chosen", (), pipeline="shop")
        connection.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [settings.slot]
        )
    with opened(settings.log_folder) as store:
        put_table(store, 1, "public.orders", Phase.READY)
    write_notes(settings.with_publication("chosen"), f"7/{database.name}")
    return settings


@pytest.mark.parametrize("by", ["--name", "--log"])
def test_it_is_found_and_dropped(
    database: Database,
    shop: Settings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    by: str,
) -> None:
    # The one thing that was not noted.
    monkeypatch.setenv("PGPASSWORD", database.server.password)
    named = "shop" if by == "--name" else str(shop.log_folder)
    assert _exit_code(["drop", by, named, "--yes", "--keep-tables"]) == 0
    out = capsys.readouterr().out
    assert f"dropped the replication slot {shop.slot}" in out
    assert "dropped the publication chosen" in out
    assert database.execute(LEFT) == []
    assert not shop.log_folder.exists()


def test_a_source_that_is_skipped_is_told_the_publication_that_was_noted(
    database: Database, shop: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "shop.yaml"
    slot, lake = shop.slot, shop.destination.uri
    file.write_text(
        f"name: shop\nsource: {{uri: '{database.uri}', slot: {slot}}}\ndestination: {lake}\n"
    )
    assert _exit_code(["drop", str(file), "--skip-source", "--yes"]) == 0
    assert not shop.log_folder.exists()
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    database.execute(*(line for line in lines if line.endswith(";")))
    assert database.execute(LEFT) == []
