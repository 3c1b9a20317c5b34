"""Folders that cannot be used: each refusal says why, and changes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.changelog.rows import IDENTITY, START, open_log, seal_rows
from walflow.changelog.durable import sealed, unsealed
from walflow.errors import LogDamaged, LogError, LogForeign, LogInUse
from walflow.model import Lsn


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("change", ["pipeline", "system_id", "slot"])
def test_the_log_of_another_pipeline(tmp_path: Path, change: str) -> None:
    open_log(tmp_path / "log").close()
    before = contents(tmp_path)
    other = replace(IDENTITY, **{change: "other"})
    with pytest.raises(LogForeign) as caught:
        open_log(tmp_path / "log", identity=other)
    assert str(IDENTITY) in caught.value.message
    assert str(other) in caught.value.message
    assert str(tmp_path / "log") in caught.value.message
    assert "--log" in caught.value.hint
    assert contents(tmp_path) == before


def test_a_folder_with_other_things_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pictures").mkdir()
    Path("pictures/holiday.jpg").write_bytes(b"x")
    with pytest.raises(LogForeign, match=r"holiday\.jpg") as raised:
        open_log(Path("pictures"))
    # A relative name keeps its letters.
    assert raised.value.sentence.startswith("The folder pictures is not a change log")
    assert [path.name for path in Path("pictures").iterdir()] == ["holiday.jpg"]


@pytest.mark.parametrize("format", [1, 3])
def test_a_log_of_another_format(tmp_path: Path, format: int) -> None:
    open_log(tmp_path / "log").close()
    head = tmp_path / "log" / "log.json"
    content = unsealed(head.read_bytes())
    head.write_bytes(sealed({**content, "format": format}))
    with pytest.raises(LogForeign, match=f"format {format}"):
        open_log(tmp_path / "log")


def test_a_log_in_use_names_the_process(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.changelog.rows import open_log\n"
        "log = open_log(Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(LogInUse, match=f"process {holder.pid} on"):
            open_log(tmp_path / "log")
        holder.kill()
    open_log(tmp_path / "log").close()


def test_a_log_cannot_be_opened_twice_in_one_process(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    with pytest.raises(LogInUse, match=f"process {os.getpid()} on"):
        open_log(tmp_path / "log")
    log.close()
    log.close()
    with pytest.raises(LogError, match="closed"):
        log.writer()
    assert log.retire(Lsn(9999), 0) == 0
    open_log(tmp_path / "log").close()


def one(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


def first_line_garbled(folder: Path) -> None:
    path = one(folder, "journal/*")
    content = bytearray(path.read_bytes())
    content[12] ^= 1
    path.write_bytes(content)


def change_digit(path: Path, after: str) -> None:
    text = path.read_text()
    at = text.index(after) + len(after)
    path.write_text(f"{text[:at]}{(int(text[at]) + 1) % 10}{text[at + 1 :]}")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "log.json is not JSON": lambda f: (f / "log.json").write_text("{"),
    "log.json lacks a part": lambda f: (f / "log.json").write_text('{"format": 1}'),
    "log.json is no object": lambda f: (f / "log.json").write_text("[]"),
    "a line is garbled": first_line_garbled,
    "the journal is not JSON": lambda f: one(f, "journal/*").write_text("hello\nworld\n"),
    "the journal is one bad line": lambda f: one(f, "journal/*").write_text("hello"),
    "the journal is missing": lambda f: one(f, "journal/*").unlink(),
    "a file is missing": lambda f: one(f, "data/*/2-*").unlink(),
    "all files are missing": lambda f: shutil.rmtree(f / "data"),
    "a file is cut short": lambda f: os.truncate(one(f, "data/*/2-*"), 100),
    "a digit of log.json is another": lambda f: change_digit(f / "log.json", '"start": '),
    "a digit of a schema is another": lambda f: change_digit(one(f, "schemas/2-*"), '"oid": '),
    "a schema is missing": lambda f: one(f, "schemas/2-*").unlink(),
    "a schema is not JSON": lambda f: one(f, "schemas/2-*").write_text("?"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_seen_at_open(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "log"
    log = open_log(folder)
    seal_rows(log, 1100, {1: 1})
    seal_rows(log, 1200, {2: 1})
    log.close()
    DAMAGES[damage](folder)
    data = contents(folder / "data")
    for _ in range(2):
        with pytest.raises(LogDamaged) as caught:
            open_log(folder)
        assert str(folder) in caught.value.message
        assert "remove it" in caught.value.hint
        assert contents(folder / "data") == data


def test_a_changed_byte_is_seen_before_a_file_is_used(tmp_path: Path) -> None:
    with closing(open_log(tmp_path / "log")) as log:
        files = seal_rows(log, 1100, {1: 20, 2: 20}).files
        log.check(files)
        path = log.folder / files[0].path
        content = path.read_bytes()
        for at in (*range(0, len(content), 7), len(content) - 1):
            path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
            with pytest.raises(LogDamaged, match="not as it was written") as caught:
                log.check(files)
            assert str(path) in caught.value.message
            assert "copies again" in caught.value.hint
        path.write_bytes(content[:-1])
        with pytest.raises(LogDamaged, match="bytes, not the"):
            log.check(files)
        path.unlink()
        with pytest.raises(LogDamaged, match="is missing"):
            log.check(files)
        log.check(files[1:])
        path.write_bytes(content)
    with closing(open_log(tmp_path / "log")) as log:
        assert log.segments(START)[0].files == files
        log.check(files)


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"")
    with pytest.raises(LogError, match="log"):
        open_log(tmp_path / "log")


def test_nested_folders_are_made(tmp_path: Path) -> None:
    log = open_log(tmp_path / "a" / "b" / "log")
    assert (log.start, log.end) == (START, START)
    log.close()
