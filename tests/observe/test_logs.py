from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from pydantic import SecretStr

from walflow.errors import DiskFull
from walflow.model import TableName
from walflow.observe import logs

SECRET = "hunter2"


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    handlers = list(logging.getLogger().handlers)
    yield
    structlog.reset_defaults()
    logging.getLogger().handlers[:] = handlers


def json_lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_is_one_object_a_line_with_utc_time() -> None:
    stream = io.StringIO()
    logs.configure(json=True, level="info", stream=stream)
    structlog.get_logger().info("copied", table=TableName("shop", "orders"), rows=3, share=0.5)
    structlog.get_logger().info("two\nlines")
    first, second = json_lines(stream)
    assert first.pop("time").endswith("Z")
    assert first == {
        "event": "copied",
        "level": "info",
        "table": "shop.orders",
        "rows": 3,
        "share": 0.5,
    }
    assert second["event"] == "two\nlines"


def test_console_is_for_people_and_has_no_colours_off_a_terminal() -> None:
    stream = io.StringIO()
    logs.configure(stream=stream)
    structlog.get_logger().info("copied", rows=3)
    assert "copied" in stream.getvalue()
    assert "rows=3" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_levels() -> None:
    stream = io.StringIO()
    logs.configure(json=True, level="WARNING", stream=stream)
    structlog.get_logger().info("no")
    structlog.get_logger().warning("yes")
    assert [line["event"] for line in json_lines(stream)] == ["yes"]
    with pytest.raises(ValueError, match="loud"):
        logs.configure(level="loud")


@pytest.mark.parametrize("as_json", [True, False])
def test_secrets_never_print(as_json: bool) -> None:
    stream = io.StringIO()
    logs.configure(json=as_json, stream=stream)
    log = structlog.get_logger()
    uri = f"postgresql://u:{SECRET}@h/db"
    log.info(f"connecting to {uri}", uri=uri, secret=SECRET, password=SECRET.encode())
    log.info("nested", settings={"a": [uri, {"token": SECRET, "b": SecretStr(SECRET)}]})
    log.info("object", thing=SecretStr(SECRET), other=ValueError(uri), pair=(uri, 1))
    try:
        raise RuntimeError(f"host=h password={SECRET}")
    except RuntimeError:
        log.exception("failed")
    logging.getLogger("library").warning("lost %s", uri)
    shown = stream.getvalue()
    assert SECRET not in shown
    assert "Traceback" in shown
    assert "u:***@h/db" in shown


def test_errors_bring_code_and_hint() -> None:
    stream = io.StringIO()
    logs.configure(json=True, stream=stream)
    structlog.get_logger().error("stopped", error=DiskFull("no space in /log"))
    structlog.get_logger().error("stopped", error=KeyError("x"))
    first, second = json_lines(stream)
    assert first["error"] == "no space in /log"
    assert first["error_code"] == "DiskFull"
    assert "--log FOLDER" in first["hint"]
    assert second["error_code"] == "KeyError"


def test_standard_logging_goes_the_same_way_once() -> None:
    stream = io.StringIO()
    logs.configure(json=True, stream=io.StringIO())
    logs.configure(json=True, stream=stream)
    logging.getLogger("library").warning("careful")
    logging.getLogger("library").info("chatter")
    assert [line["event"] for line in json_lines(stream)] == ["careful"]


def test_a_logger_made_before_configuring_follows() -> None:
    log = structlog.get_logger()
    stream = io.StringIO()
    logs.configure(json=True, stream=stream)
    log.info("late")
    assert json_lines(stream)[0]["event"] == "late"


FROM_PYTHON = """
import structlog
from walflow import Pipeline, WalflowError
{before}
log = structlog.get_logger("walflow.before")
pipeline = Pipeline({{
    "source.uri": "postgresql://me@127.0.0.1:9/x",
    "destination.uri": "iceberg:///lake",
    "log.folder": {folder!r},
    "store.uri": "memory:",
}})
try:
    pipeline.start()
except WalflowError as error:
    log.debug("debug")
    log.info("info")
    log.warning("failed", error=error)
"""


def run_from_python(folder: Path, before: str = "") -> tuple[str, str]:
    program = FROM_PYTHON.format(folder=str(folder / "log"), before=before)
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    return ran.stdout, ran.stderr


def test_from_python_only_warnings_are_told_and_on_stderr(tmp_path: Path) -> None:
    out, err = run_from_python(tmp_path)
    assert out == ""
    (line,) = err.splitlines()
    assert "failed" in line
    assert "error_code=CannotConnect" in line
    assert "hint=" in line


def test_events_of_the_caller_stay_as_structlog_shows_them(tmp_path: Path) -> None:
    own = 'caller = structlog.get_logger()\nstructlog.get_logger("theirs").info("early")'
    program = FROM_PYTHON.format(folder=str(tmp_path / "log"), before=own)
    program += '    caller.debug("late")\n    structlog.get_logger("theirs").info("later")\n'
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert [line.split("] ")[1].split()[0] for line in ran.stdout.splitlines()] == [
        "early",
        "late",
        "later",
    ]
    assert len(ran.stderr.splitlines()) == 1


def test_from_python_who_asks_for_more_gets_it(tmp_path: Path) -> None:
    ours = "from walflow.observe import logs\nlogs.configure(level='debug', json=True)"
    out, err = run_from_python(tmp_path, ours)
    assert out == ""
    assert [json.loads(line)["level"] for line in err.splitlines()] == ["debug", "info", "warning"]
    theirs = "structlog.configure(processors=[structlog.processors.JSONRenderer()])"
    out, err = run_from_python(tmp_path, theirs)
    assert (len(out.splitlines()), err) == (3, "")
