"""Whatever moment a process dies at, the log opens, and has what was sealed and nothing else."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

from tests.changelog.dying import STEPS
from tests.changelog.rows import START, files_in_log, files_on_disk, open_log, read, seal_rows
from walflow.model import Lsn

SEGMENTS = {1100: [3], 1200: [600, 600], 1300: [3, 1], 5100: [3]}
"""The rows of each table (and version) in the segments that dying.py seals, by their ends."""


def test_killed_at_every_call_that_changes_the_disk(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "tests.changelog.dying", tmp_path], check=True)
    folders = [path for path in tmp_path.iterdir() if path.name.isdigit()]
    assert len(folders) > 60
    reached = set()
    for folder in folders:
        done = (tmp_path / f"{folder.name}.done").read_text().split("\n")[:-1]
        reached.add(len(done))
        check_survivor(folder, done)
    assert reached == set(range(len(STEPS) + 2)), "every step was cut short, and one run was not"


def check_survivor(folder: Path, done: list[str]) -> None:
    log = open_log(folder)
    segments = log.segments(Lsn(0))
    ends = [int(segment.span.upto) for segment in segments]
    restarted = log.start == Lsn(5000)
    assert log.start in (START, Lsn(5000))
    assert restarted or "restarted 5000" not in done

    positions = [int(step.split()[1]) for step in done if step.startswith(("sealed", "ended"))]
    assert log.end >= max(positions, default=int(START)), "what was acknowledged is there"
    sealed = [end for end in SEGMENTS if (end > 5000) == restarted and end <= log.end]
    retired = [] if restarted or log.covers(1, START) else [1100]
    assert ends == [end for end in sealed if end not in retired]
    assert "retired 1100" not in done or restarted or retired

    for segment in segments:
        rows = read(log, [segment])
        assert [len(rows[key]) for key in sorted(rows)] == SEGMENTS[int(segment.span.upto)]
        for file in segment.files:
            assert log.schema(file.table, file.version).oid == file.table
    assert files_on_disk(folder) == files_in_log(log)
    assert list(folder.rglob("*.tmp")) == []

    following = seal_rows(log, int(log.end) + 1000, {1: 2})
    log.close()
    log = open_log(folder)
    assert log.segments(Lsn(0)) == [*segments, following]
    log.close()


def test_killed_at_any_time(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.changelog.rows import *\n"
        "log = open_log(Path(sys.argv[1]), buffer_bytes=20_000)\n"
        "while True:\n"
        "    end = seal_rows(log, int(log.end) + 100, {1: 200, 2: 5}).span.upto\n"
        "    print(int(end), flush=True)\n"
    )
    folder = tmp_path / "log"
    chance = random.Random(20261115)
    expected = int(START)
    for _ in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(chance.random() * 0.3)
            process.kill()
            said = [int(line) for line in process.stdout if line.endswith("\n")]
        log = open_log(folder)
        assert log.end >= max(said, default=expected)
        expected = int(log.end)
        ends = [int(segment.span.upto) for segment in log.segments(START)]
        assert ends == list(range(int(START) + 100, expected + 1, 100))
        rows = read(log, log.segments(Lsn(expected - 300)))
        last = min(3, len(ends))
        assert (len(rows[1, 0]), len(rows[2, 0])) == (200 * last, 5 * last)
        assert files_on_disk(folder) == files_in_log(log)
        log.close()


def test_a_torn_last_record_never_was(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    log = open_log(folder)
    first = seal_rows(log, 1100, {1: 1})
    log.close()
    (path,) = (folder / "journal").iterdir()
    whole = path.read_bytes()
    log = open_log(folder)
    seal_rows(log, 1200, {1: 1})
    log.close()
    record = path.read_bytes()[len(whole) :]
    for length in (0, 1, 8, 9, 40, len(record) - 1):
        path.write_bytes(whole + record[:length])
        log = open_log(folder)
        assert (log.end, log.segments(START)) == (Lsn(1100), [first])
        assert path.read_bytes() == whole
        again = seal_rows(log, 1200, {1: 1})
        log.close()
        log = open_log(folder)
        assert log.segments(START) == [first, again]
        log.close()
    zeros = whole + bytes(len(record))
    path.write_bytes(zeros)
    log = open_log(folder)
    assert log.end == Lsn(1100)
    log.close()
