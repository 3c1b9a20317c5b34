"""Pictures of the command at work, for the docs: ``make pictures``.

Runs the real command in a pseudo-terminal against an embedded Postgres, and makes SVGs of what it
shows. Names of temporary folders and ports are put into plain ones; all else is as it was.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import shlex
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

from walflow.errors import NoReplicaIdentity
from walflow.model import Phase
from walflow.testing.postgres import EmbeddedPostgres

_ASSETS = Path(__file__).parents[2] / "docs" / "assets"
_WALFLOW = Path(sys.executable).parent / "walflow"
_COLUMNS, _LINES = 96, 34
_SECONDS = 180

# What rich moves about with, when it draws over what it drew before.
_MOVES = re.compile(r"(\x1b\[2K|\x1b\[1A|\r)")
_NOT_COLOUR = re.compile(r"\x1b\[[?0-9;]*[A-LN-Za-ln-z]|\x1b\][^\x07]*\x07")

_SHOP = """
CREATE TABLE customers (id bigint PRIMARY KEY, name text NOT NULL, joined timestamptz);
CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint, total numeric(12,2), placed date);
CREATE TABLE events (at timestamptz, what text);
INSERT INTO customers SELECT n, 'customer ' || n, now() FROM generate_series(1, 20000) AS n;
INSERT INTO orders SELECT n, n % 20000, n % 977, current_date FROM generate_series(1, 60000) AS n;
ANALYZE;
"""


def main() -> None:
    """Make all pictures; takes a minute or two."""
    _ASSETS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="wf") as folder:
        # A server that root starts runs as another user.
        Path(folder).chmod(0o755)
        _demo(Path(folder))
        _own_postgres(Path(folder))


def _demo(folder: Path) -> None:
    lake = folder / "demo"
    shown = _run(["demo", "--seconds", "40", "--rows", "120000", "--folder", str(lake)])
    plain = {str(lake): "/data"}
    screens = list(_screens(shown))
    _draw("demo-copying.svg", "make demo", max(screens, key=_copying), plain)
    _draw("demo-live.svg", "make demo", max(screens, key=_rate), plain)
    end = screens[-1]
    result = end[end.rindex("\n", 0, end.rindex("source rows")) :].partition("The tables are")[0]
    _draw("demo-result.svg", "make demo", result, plain)


def _copying(screen: str) -> int:
    """How many tables are in the middle of their copy."""
    return len(re.findall(r"\b[1-9]\d?%", screen))


def _rate(screen: str) -> tuple[bool, int]:
    """Changes a second, where all tables are followed; best while the shop is open."""
    rate = re.search(r"\(([\d,]+)/s\)", _NOT_COLOUR.sub("", screen))
    if rate is None or "being copied" in screen:
        return False, 0
    return "shopping" in screen, int(rate[1].replace(",", ""))


def _screens(written: str) -> Iterator[str]:
    """The screens that were visible: each before it was drawn over, and the last one."""
    lines = [""]
    drawn = False
    for piece in _MOVES.split(written):
        if not _MOVES.fullmatch(piece):
            first, *more = piece.split("\n")
            lines = [*lines[:-1], lines[-1] + first, *more]
            drawn = drawn or bool(piece)
            continue
        if drawn:
            yield "\n".join(lines)
            drawn = False
        if piece.endswith("A"):
            lines.pop()
        elif piece.endswith("K"):
            lines[-1] = ""
    yield "\n".join(lines)


def _own_postgres(folder: Path) -> None:
    with EmbeddedPostgres() as postgres:
        with postgres.connect() as connection:
            connection.execute("CREATE DATABASE shop")
        with postgres.connect("shop") as connection:
            connection.execute(_SHOP)
        uri = postgres.uri_for("shop")
        ends = ["--from", uri, "--to", f"iceberg://{folder}/lake", "--log", f"{folder}/log"]
        told = ["--from", "postgresql://user@host/shop", "--to", "iceberg:///data/lake"]
        server = f"{postgres.user}@127.0.0.1:{postgres.port}"
        plain = {
            str(folder): "/data",
            server: "user@host",
            str(Path.home()): "~",
            f" on {socket.gethostname()}": " on host",
        }
        # The table of events has no key yet, so the picture shows an error with its hint.
        shown = _run(["check", *ends, "--create-publication"], code=NoReplicaIdentity.exit_code)
        _draw("check.svg", shlex.join(["walflow", "check", *told]), _last(shown), plain)
        with postgres.connect("shop") as connection:
            connection.execute("ALTER TABLE events REPLICA IDENTITY FULL")
        found = ["--log", f"{folder}/log"]
        with _running(["run", *ends, "--create-publication"]), postgres.connect("shop") as shop:
            _wait_until_ready(found)
            for _ in range(10):
                shop.execute("UPDATE orders SET total = total + 1 WHERE id % 500 = 0")
                time.sleep(0.5)
            shown = _run(["status", *found])
        _draw("status.svg", "walflow status", _last(shown), plain)


@contextmanager
def _running(arguments: list[str]) -> Iterator[None]:
    process = subprocess.Popen(
        [_WALFLOW, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=_SECONDS)


def _wait_until_ready(found: list[str]) -> None:
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        asked = subprocess.run(
            [_WALFLOW, "status", "--json", *found], capture_output=True, text=True
        )
        tables = json.loads(asked.stdout)["tables"] if asked.returncode == 0 else []
        if tables and all(table["phase"] == Phase.READY.value for table in tables):
            return
        time.sleep(1)
    raise TimeoutError(f"the tables were not ready after {_SECONDS} s")


def _last(written: str) -> str:
    *_, screen = _screens(written)
    return screen


def _run(arguments: list[str], code: int = 0) -> str:
    """All that the command writes to a terminal."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, _COLUMNS, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    process = subprocess.Popen(
        [_WALFLOW, *arguments], stdin=its, stdout=its, stderr=its, env=environment
    )
    os.close(its)
    written = b""
    try:
        while piece := _read(ours):
            written += piece
    finally:
        os.close(ours)
        ended = process.wait(timeout=_SECONDS)
    shown = written.decode("utf-8", "replace").replace("\r\n", "\n")
    if ended != code:
        raise RuntimeError(f"{shlex.join(arguments)} ended with {ended}: {shown[-2000:]}")
    return shown


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says so when the last process at the other end has gone
        return b""


def _draw(name: str, title: str, shown: str, plain: Mapping[str, str]) -> None:
    for found, instead in plain.items():
        shown = shown.replace(found, instead)
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(_NOT_COLOUR.sub("", shown).strip("\n")))
    svg = console.export_svg(title=title, unique_id=Path(name).stem)
    # Fonts from elsewhere would be asked for by every reader.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    (_ASSETS / name).write_text(svg, encoding="utf-8")
    print(f"{name}: {len(svg) // 1024} KiB")


if __name__ == "__main__":
    main()
