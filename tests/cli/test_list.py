"""``walflow list``, and commands that find a pipeline by what it has noted of itself."""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.cli.stored import HOLDER, an_error, opened, put_shop, put_table, run_it
from walflow.cli import _exit_code
from walflow.config import load_settings
from walflow.model import Phase
from walflow.pipeline.state.pipeline_notes import note_stop, write_notes
from walflow.states import RetryKind


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def note(folder: Path, name: str, **more: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    said = {
        "name": name,
        "source.uri": f"postgresql://me:hush@127.0.0.1:1/{name}",
        "destination.uri": "iceberg:///lake",
        "log.folder": str(folder),
        **more,
    }
    settings = load_settings(None, said, {})
    write_notes(settings.with_publication(settings.publication), f"7/{name}")


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, Any]]:
    assert _exit_code(["list", "--json", *arguments]) == 0
    shown = json.loads(capsys.readouterr().out)["pipelines"]
    return {one["pipeline"]: one for one in shown}


def test_all_pipelines_are_listed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = home / ".walflow"
    assert _exit_code(["list"]) == 0
    assert "No pipeline has its log in" in capsys.readouterr().out
    note(logs / "shop", "shop")
    note(logs / "bi", "bi", **{"store.uri": "postgresql://me:hush@127.0.0.1:1/x"})
    note(logs / "elsewhere", "elsewhere", **{"store.uri": "redis://127.0.0.1:1/0"})
    note(home / "srv" / "far", "far")
    note_stop(logs / "elsewhere")
    (logs / "bi" / "lock").write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
    (logs / "something else").mkdir()
    with opened(logs / "shop") as store:
        put_shop(store)
        error = an_error(RetryKind.TIMED)
        put_table(store, 6, "public.tried", Phase.CATCHUP, attempts=3, error=error)
        run_it(store)
        found = listed(capsys)
        assert list(found) == ["bi", "elsewhere", "shop"]
        assert found["shop"]["running"]
        assert (found["shop"]["pid"], found["shop"]["host"]) == (HOLDER.pid, HOLDER.host)
        assert (found["shop"]["tables"], found["shop"]["set_aside"]) == (6, 3)
        assert found["shop"]["failing"] == 4
        assert found["shop"]["source"] == "postgresql://me@127.0.0.1:1/shop"
        assert found["shop"]["publication"] == "walflow_shop"
        assert found["shop"]["log"] == str(logs / "shop")
        # Its store is not asked: that may take its time. Who runs it is told by the log's lock.
        assert (found["bi"]["running"], found["bi"]["tables"]) == (True, None)
        assert (found["elsewhere"]["running"], found["elsewhere"]["tables"]) == (False, None)
        assert found["elsewhere"]["stopped"] is not None
        assert list(listed(capsys, "--log", str(home / "srv"))) == ["far"]
        assert list(listed(capsys, "--log", str(home / "srv" / "far"))) == ["far"]
        assert _exit_code(["list"]) == 0
        out = capsys.readouterr().out
        assert "6 tables, 3 set aside, 1 tried again after a failure" in out
        # Whether another machine runs what is not known to run here, nobody here knows.
        assert re.search("elsewhere  stopped .* ago on this machine", out)
        assert "hush" not in out
        store.release_lease(HOLDER)
    assert listed(capsys)["shop"]["running"] is False
    assert _exit_code(["list"]) == 0
    assert "shop  does not run; it did not stop in order" in capsys.readouterr().out


def test_a_pipeline_is_found_by_its_log_alone(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "srv" / "log"
    note(log, "shop")
    with opened(log) as store:
        put_shop(store)
        assert _exit_code(["status", "--log", str(log), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["pipeline"] == "shop"
        # The source is asked by what was noted: where it is, but no password.
        assert _exit_code(["drop", "--log", str(log), "--yes"]) == 11
        assert "me@127.0.0.1:1/shop" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["as-of"], ["drop", "--yes"]])
def test_a_pipeline_that_is_not_known(
    home: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    note(home / ".walflow" / "shop", "shop")
    assert _exit_code(command) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "No pipeline default is known here" in told
    assert "Known here are shop (`walflow list`)" in told


def test_a_store_that_needs_a_secret(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    note(home / ".walflow" / "bi", "bi", **{"store.uri": "postgresql://me:hush@127.0.0.1:1/x"})
    for command in ("status", "drop", "as-of"):
        assert _exit_code([command, "--name", "bi"]) == 2
        assert "WALFLOW_STORE__URI" in capsys.readouterr().err
