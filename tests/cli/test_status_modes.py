"""``walflow status`` of a settings file shows what it wants of tables in a lake."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.stored import opened, put_table
from walflow.cli import _exit_code
from walflow.config import load_settings
from walflow.model import Phase

APPLY = """
apply:
  mode: soft_delete
  tables:
    public.orders: {mode: history}
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with opened(tmp_path / "log") as store:
        for oid, name in enumerate(("public.items", "public.orders", "public.others")):
            put_table(store, oid + 1, name, Phase.READY)
    return tmp_path / "log"


def write(log: Path, destination: str, more: str = APPLY) -> Path:
    file = log.parent / "pipeline.yaml"
    file.write_text(
        f"name: shop\nlog: {{folder: {log}}}\n"
        # Whoever looks may not have the source's password.
        "source: {uri: '${NOT_SET_HERE}'}\n"
        f"destination: {{uri: '{destination}'}}\n{more}"
    )
    return file


def read(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> list[dict[str, Any]]:
    assert _exit_code(["status", "--json", *map(str, arguments)]) == 0
    tables: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["tables"]
    return tables


def test_a_column_for_people_and_a_key_for_programs(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(log, "iceberg:///none")
    assert _exit_code(["status", str(file)]) == 0
    header, *lines = capsys.readouterr().out.splitlines()[2:]
    assert header.split()[:4] == ["table", "destination", "mode", "phase"]
    start = header.index("mode")
    assert [line[start : header.index("phase")].strip() for line in lines] == [
        "soft_delete",
        "history",
        "soft_delete",
    ]
    tables = read(capsys, file)
    apply = load_settings(
        file, {"source.uri": "postgresql:///none", "destination.uri": "iceberg:///none"}, {}
    ).apply
    for table in tables:
        assert table["mode"] == apply.plan_of(table["table"]).mode
    assert {table["mode"] for table in tables} == {"soft_delete", "history"}


def test_a_narrow_terminal_has_room_for_all(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    assert _exit_code(["status", str(write(log, "delta:///none"))]) == 0
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert "…" not in out
    for word in ("public.items", "soft_delete", "history", "failures"):
        assert re.search(rf"(^| ){re.escape(word)}", out, re.MULTILINE), out
    assert all(len(line.rstrip()) <= 80 for line in out.splitlines())


@pytest.mark.parametrize("destination", ["https://host/path", "${NOT_SET_HERE}"])
def test_nothing_is_said_where_it_is_not_known(
    log: Path, capsys: pytest.CaptureFixture[str], destination: str
) -> None:
    file = write(log, destination)
    for arguments in ((file,), ("--name", "shop", "--log", log)):
        assert _exit_code(["status", *map(str, arguments)]) == 0
        assert " mode " not in capsys.readouterr().out
        assert {table["mode"] for table in read(capsys, *arguments)} == {None}
