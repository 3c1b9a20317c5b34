"""What is noted of a pipeline beside its log: enough to find it again, and no secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from walflow.config import Settings, load_settings
from walflow.pipeline.state.pipeline_notes import (
    find_pipelines,
    note_stop,
    read_notes,
    remove_notes,
    write_notes,
)

SECRETS = ("hush", "t0ken", "k3y")


def settings_of(folder: Path, **more: Any) -> Settings:
    said = {
        "name": "shop",
        "source": {
            "uri": "postgresql://me:hush@db:5433/shop?sslmode=require",
            "publication": "mine",
            "tls": {"root_certificate": "/etc/root.crt"},
        },
        "destination": {
            "uri": "iceberg:///lake",
            "options": {"type": "rest", "token": "t0ken", "s3.secret-access-key": "k3y"},
        },
        "store": {"uri": "postgresql://me:hush@store/walflow"},
        "apply": {"tables": {"public.orders": {"mode": "history"}}},
        "copy": {"range_bytes": 1000},
        "log": {"folder": str(folder)},
    }
    folder.mkdir(parents=True, exist_ok=True)
    return load_settings(None, {**said, **more}, {})


def test_what_is_noted_finds_the_pipeline_again_and_has_no_secret(tmp_path: Path) -> None:
    folder = tmp_path / "logs" / "shop"
    settings = settings_of(folder)
    assert write_notes(settings, "7/shop")
    text = (folder / "pipeline.json").read_text(encoding="utf-8")
    assert not any(secret in text for secret in SECRETS)
    known = read_notes(folder)
    assert known is not None
    assert sorted(known.left_out) == [
        "destination.options.s3.secret-access-key",
        "destination.options.token",
        "source.uri",
        "store.uri",
    ]
    again = load_settings(None, {}, {}, noted=known.settings)
    assert again.name == "shop"
    assert again.copying == settings.copying
    assert again.apply == settings.apply
    assert again.destination.uri == "iceberg:///lake"
    assert again.destination.options == {"type": "rest"}
    uri = again.source.uri.get_secret_value()
    for part in ("host=db", "port=5433", "user=me", "sslrootcert=/etc/root.crt"):
        assert part in uri
    assert known.writes("7/shop", "iceberg:///lake/")
    assert known.writes("7/shop", "iceberg:/lake")
    assert not known.writes("7/shop", "iceberg:///lake/other")
    assert not known.writes("7/shop", "delta:///lake")
    assert not known.writes("8/shop", "iceberg:///lake")
    # What is said now stands before it.
    assert load_settings(None, {"name": "other"}, {}, noted=known.settings).name == "other"


def test_it_is_rewritten_at_each_start_and_forgotten_with_the_log(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    assert write_notes(settings_of(folder), "7/shop")
    first = read_notes(folder)
    assert first is not None
    assert first.stopped is None
    note_stop(folder)
    ended = read_notes(folder)
    assert ended is not None
    assert ended.stopped is not None
    assert not write_notes(settings_of(folder, destination={"uri": "delta:///d"}), "7/shop")
    second = read_notes(folder)
    assert second is not None
    assert (second.begun, second.stopped, second.destination) == (first.begun, None, "delta:///d")
    assert [known.name for _, known in find_pipelines([tmp_path])] == ["shop"]
    assert [path for path, _ in find_pipelines([folder, tmp_path])] == [folder]
    remove_notes(folder)
    remove_notes(folder)
    assert list(folder.iterdir()) == []
    note_stop(folder)
    assert list(find_pipelines([tmp_path, tmp_path / "none"])) == []


def test_notes_of_other_versions_and_broken_ones(tmp_path: Path) -> None:
    write_notes(settings_of(tmp_path), "7/shop")
    file = tmp_path / "pipeline.json"
    content = json.loads(file.read_text())
    content["settings"]["gone"] = {"by": "now"}
    content["settings"]["source"]["gone"] = 1
    file.write_text(json.dumps(content))
    known = read_notes(tmp_path)
    assert known is not None
    assert load_settings(None, {}, {}, noted=known.settings).name == "shop"
    for broken in ("", "[]", '{"format": 2}', json.dumps({**content, "more": 1})):
        file.write_text(broken)
        assert read_notes(tmp_path) is None
