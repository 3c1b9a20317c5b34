"""``walflow status``: from a store on the disk, as people and programs read it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import Room
from tests.cli.stored import an_error, opened, put_shop, put_table, run_it
from walflow.cli import _exit_code
from walflow.model import Phase, TableName
from walflow.states import RetryKind
from walflow.stores.base import Action, Request, Store

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def store(log: Path) -> Iterator[Store]:
    """Open in this process, as a running pipeline has it, while the command reads."""
    with opened(log) as made:
        yield made


def status(log: Path, *more: str, code: int = 0) -> None:
    assert _exit_code(["status", "--name", "shop", "--log", str(log), *more]) == code


def read_json(log: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    status(log, "--json", *more)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    read: dict[str, Any] = json.loads(lines[0])
    return read


def test_a_running_pipeline_in_a_pipe(
    store: Store, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_shop(store)
    run_it(store)
    status(log)
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"walflow shop  running: process \d+ on \S+, last reported \d+ s ago", lines[0]
    )
    assert lines[1] == "wal 0/3000, log 0/2800, applied 0/1800: 6.0 kB and 1.2 s behind"
    assert lines[3].split() == [
        "table",
        "destination",
        "phase",
        "since",
        "rows",
        "changes",
        "lag",
        "failures",
    ]
    rows = [line.split() for line in lines[4:9]]
    assert [row[0] for row in rows] == [
        "public.manual",
        "public.timed",
        "sales.final",
        "public.new",
        "public.orders",
    ]
    assert (rows[3][2], rows[3][4:]) == ("DataSync", ["s", "10", "0", "-", "0"])
    assert rows[4][2:] == ["Ready", "3", "min", "1,234", "56", "4.0", "kB", "0"]
    # The set-aside table lags by its own position, which is behind the others'.
    assert rows[1][2:] == ["Errored", "3", "min", "0", "0", "8.0", "kB", "2"]
    assert len({len(line) for line in lines[3:9]}) == 1, "columns are aligned"
    text = "\n".join(lines)
    find = f"--name shop --log {log}"
    assert "a very long reason, " * 12 + "to its end" in text
    assert "public.timed was set aside 3 min ago in Catchup, after 2 failures" in text
    assert "  What to do: Free some space." in text
    assert re.search(r"attempt is in (59 min|1 h) \(\d{4}-\d\d-\S+Z\)\. To try it at once:", text)
    assert f"    walflow retry public.timed {find}" in lines
    assert f"    walflow retry public.manual {find}" in lines
    assert f"    walflow resync sales.final {find}" in lines


@pytest.mark.parametrize("width", [80, 120])
def test_in_a_terminal_nothing_is_cut_off(
    store: Store,
    log: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    width: int,
) -> None:
    long = "public.a_table_with_a_name_that_is_as_long_as_postgres_lets_it_be_yes"
    put_shop(store)
    put_table(store, 9, long, Phase.FINISHED_COPY, rows=9_999_999, destination="lake.renamed")
    run_it(store)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    status(log)
    out = capsys.readouterr().out
    assert "\x1b[" in out
    plain = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", out).splitlines()]
    # Commands are in one piece, to be pasted; all else is wrapped.
    assert all(len(line) <= width for line in plain if "    walflow re" not in line)
    assert "…" not in out
    at = next(number for number, line in enumerate(plain) if "9,999,999" in line)
    name = [line.split()[0] for line in plain[at : at + 4]]
    assert "".join(name).startswith(long)
    assert "→ lake.renamed" in plain
    assert ("a very long reason, " * 12 + "to its end") in " ".join(" ".join(plain).split())
    assert f"    walflow retry public.timed --name shop --log {log}" in plain


def test_what_programs_read(store: Store, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_shop(store)
    run_it(store)
    asked = Request("id1", TableName("public", "manual"), Action.RETRY, time.time())
    store.put_request(asked)
    read = read_json(log, capsys)
    assert set(read) == {
        "pipeline", "at", "running", "holder", "report", "set_aside", "failing", "tables",
        "requests",
    }  # fmt: skip
    assert set(read["holder"]) == {"host", "pid", "lease_seconds_left"}
    assert set(read["report"]) == {
        "at", "wal_end", "wal_end_number", "log_end", "log_end_number", "applied",
        "applied_number", "lag_bytes", "lag_seconds", "batches",
    }  # fmt: skip
    assert (read["report"]["wal_end"], read["report"]["wal_end_number"]) == ("0/3000", 0x3000)
    assert (read["pipeline"], read["running"], read["set_aside"]) == ("shop", True, 3)
    assert len(read["tables"]) == 5
    for table in read["tables"]:
        assert set(table) == {
            "table", "schema", "name", "oid", "destination", "mode", "phase", "since",
            "position", "position_number", "rows_copied", "changes_applied", "lag_bytes",
            "attempts", "error",
        }  # fmt: skip
    timed = read["tables"][1]
    assert (timed["table"], timed["phase"], timed["attempts"]) == ("public.timed", "Errored", 2)
    assert set(timed["error"]) == {"code", "reason", "hint", "phase", "retry", "next_attempt"}
    assert (timed["error"]["retry"], timed["error"]["phase"]) == ("timed", "Catchup")
    assert read["tables"][0]["error"]["next_attempt"] is None
    assert read["tables"][3]["lag_bytes"] is None
    for text in (read["at"], read["report"]["at"], timed["since"], timed["error"]["next_attempt"]):
        assert TIME.fullmatch(text)
        assert datetime.fromisoformat(text).tzinfo is not None
    assert [set(request) for request in read["requests"]] == [{"id", "table", "action", "asked"}]


def test_batches_by_engine(store: Store, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_shop(store)
    run_it(store, batches={"columnar": 1203, "spark (size)": 4})
    status(log)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "batches written since the start: 1,203 columnar, 4 spark (size)"
    assert read_json(log, capsys)["report"]["batches"] == {"columnar": 1203, "spark (size)": 4}


def test_only_errors(store: Store, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_shop(store)
    read = read_json(log, capsys, "--errors")
    assert [table["name"] for table in read["tables"]] == ["manual", "timed", "final"]
    status(log, "--errors")
    assert "public.orders" not in capsys.readouterr().out


def test_a_stopped_pipeline(store: Store, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_table(store, 1, "public.orders", Phase.READY, age=3 * 86400)
    store.put_request(Request("id1", TableName("public", "orders"), Action.RESYNC, time.time()))
    status(log)
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "walflow shop  not running"
    assert "3 d" in out
    assert "resync of public.orders; it will be done at the pipeline's next start" in out
    assert read_json(log, capsys)["holder"] is None


def test_a_pipeline_that_died(store: Store, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_table(store, 1, "public.orders", Phase.READY)
    run_it(store, seconds=0.0)
    status(log)
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert re.search(r"not running: process \d+ on \S+ ended unexpectedly, last reported", first)
    assert second.endswith("behind, when it last reported")
    assert read_json(log, capsys)["running"] is False


def test_check_tells_by_the_exit_code(store: Store, log: Path) -> None:
    put_table(store, 1, "public.orders", Phase.READY)
    status(log, "--check", code=1)
    run_it(store, reported=False)
    status(log, "--check")
    put_shop(store)
    status(log, "--check", code=52)
    status(log)


def test_a_table_that_is_tried_again_is_shown_with_its_last_error(
    store: Store, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # As a pipeline leaves it between two failures.
    error = an_error(RetryKind.TIMED, time.time() - 5)
    put_table(store, 1, "public.orders", Phase.READY)
    put_table(store, 2, "public.tried", Phase.CATCHUP, age=200, attempts=3, error=error)
    run_it(store)
    status(log, "--check", code=52)
    capsys.readouterr()
    status(log, "--errors")
    out = capsys.readouterr().out
    assert "public.orders" not in out
    assert re.search(
        r"public.tried failed in Catchup, and has been tried again for .*, after 3 f", out
    )
    assert "It is being tried again now." in out
    assert "the disk of the lake is full" in out
    assert "What to do: Free some space." in out
    assert "walflow retry" not in out
    read = read_json(log, capsys, "--errors")
    assert (read["set_aside"], read["failing"]) == (0, 1)
    (tried,) = read["tables"]
    assert (tried["phase"], tried["attempts"]) == ("Catchup", 3)
    assert tried["error"]["reason"] == "the disk of the lake is full"
    # It lags like any other that is followed.
    assert tried["lag_bytes"] == 0x2000


def test_nothing_comes_by_itself_while_the_pipeline_does_not_run(
    store: Store, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = an_error(RetryKind.TIMED, time.time() - 5)
    put_table(store, 1, "public.tried", Phase.CATCHUP, age=7200, attempts=3, error=error)
    put_table(store, 2, "public.due", Phase.ERRORED, attempts=1, error=error)
    error = an_error(RetryKind.TIMED, time.time() + 3600)
    put_table(store, 3, "public.timed", Phase.ERRORED, attempts=1, error=error)
    error = an_error(RetryKind.MANUAL, code="NoSelectRight")
    put_table(store, 4, "public.hidden", Phase.ERRORED, attempts=1, error=error)
    status(log, "--errors")
    out = capsys.readouterr().out
    assert "public.tried failed in Catchup, after 3 failures" in out
    assert "\n  It is tried again when the pipeline runs.\n" in out
    assert "runs. To try it as soon as it runs:\n    walflow retry public.due" in out
    assert re.search(r"when the pipeline runs, but not before \S+Z\. To try it", out)
    assert "walflow checks it when the pipeline runs, and resumes" in out
    for untrue in ("now", "by itself", "every few seconds", "has been tried"):
        assert untrue not in out


def test_a_pipeline_that_is_not_there(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status(log, code=2)
    err = capsys.readouterr().err
    assert str(log / "state.db") in err
    assert "What to do:" in err
    assert not log.exists(), "a look makes nothing"


def test_another_name_in_the_same_store(
    store: Store, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_table(store, 1, "public.orders", Phase.READY)
    assert _exit_code(["status", "--name", "shpo", "--log", str(log)]) == 2
    assert "'shpo'" in capsys.readouterr().err


def test_the_pipeline_is_found_by_its_settings_file(
    store: Store, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_shop(store)
    file = tmp_path / "shop.yaml"
    file.write_text(f"name: shop\nlog: {{folder: {log}}}\n")
    assert _exit_code(["status", str(file)]) == 0
    assert f"walflow retry public.timed --file {file}" in capsys.readouterr().out


def test_a_secret_in_an_error_is_not_shown(
    store: Store, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = an_error(RetryKind.MANUAL, reason="cannot reach postgresql://me:hunter2@db/x")
    put_table(store, 1, "public.orders", Phase.ERRORED, error=error)
    status(log)
    status(log, "--json")
    assert "hunter2" not in capsys.readouterr().out


def test_as_a_process_it_is_quick(room: Room) -> None:
    log = room.path / "log"
    with opened(log) as store:
        for number in range(300):
            put_table(store, number, f"public.t{number:03}", Phase.READY)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        ran = room.run("status", "--name", "shop", "--log", log)
        times.append(time.perf_counter() - began)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("Ready") == 300
    print(f"walflow status of 300 tables: {min(times):.2f} s at best of {len(times)}")
