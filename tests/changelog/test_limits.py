"""A full disk, and memory that does not grow with the transaction."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FULL_DISK = r"""
import sys
from pathlib import Path
import numpy as np, pyarrow as pa
from tests.changelog.rows import *
from walflow.errors import DiskFull

disk = Path(sys.argv[1])
log = open_log(disk / "log", file_bytes=1 << 20, buffer_bytes=1 << 20)
first = seal_rows(log, 1100, {1: 10})

def transaction(megabytes):
    noise = np.random.default_rng(1)
    for at in range(megabytes * 4):
        batch = inserts(table(1), 1190, 4, first=4 * at)
        values = pa.array([noise.bytes(32 << 10).hex() for _ in range(4)])
        batch = batch.set_column(batch.schema.get_field_index("name"), "name", values)
        log.writer().append(table(1), batch, stats_of(batch))
    return log.writer().seal(Lsn(1200), 0, 1)

def refused(attempt):
    try:
        attempt()
    except DiskFull as error:
        assert str(disk / "log") in error.message and "bytes are free" in error.message, error
        assert "--log" in error.hint
        assert error.retry
    else:
        raise AssertionError("not refused")
    assert log.end == Lsn(1100)
    assert log.segments(START) == [first]
    assert files_on_disk(log.folder) == files_in_log(log), "partial files are removed"
    assert list(log.folder.rglob("*.tmp")) == []
    assert log.writer().buffered_bytes == log.writer().open_bytes == 0

# A transaction that is larger than the disk, twice; then less and less room for a small one, so
# that each of its files is refused in turn.
refused(lambda: transaction(30))
refused(lambda: transaction(30))
filler = disk / "filler"
refusals = 0
for left in range(0, 200, 4):
    free = shutil.disk_usage(disk).free - (left << 10)
    filler.write_bytes(bytes(free))
    try:
        seal_rows(log, 1200, {2: 3000, 3: 3000})
    except DiskFull:
        refused_now = True
    else:
        refused_now = False
    filler.unlink()
    if not refused_now:
        break
    refusals += 1
    assert log.end == Lsn(1100) and files_on_disk(log.folder) == files_in_log(log)
assert refusals > 2, refusals
log.writer().seal(Lsn(1300), 0, 1)
sealed = log.segments(Lsn(1100))
log.close()

log = open_log(disk / "log")
assert log.segments(Lsn(1100)) == sealed
assert {key: len(rows) for key, rows in read(log, sealed).items()} == {(2, 0): 3000, (3, 0): 3000}
filler.write_bytes(bytes(shutil.disk_usage(disk).free))
try:
    open_log(disk / "other")
except DiskFull as error:
    assert str(disk / "other") in error.message
else:
    raise AssertionError("a new log on a full disk")
filler.unlink()
open_log(disk / "other").close()
log.close()
print("passed", refusals)
"""


def test_a_full_disk_is_said_and_nothing_partial_stays(tmp_path: Path) -> None:
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "-r"]
    # The mount lives in a namespace of its own, and ends with it.
    mount = 'mount -t tmpfs -o size=8m tmpfs "$1" || exit 77; exec "$2" -c "$3" "$1"'
    if shutil.which("unshare") is None:
        pytest.skip("needs a small disk: install util-linux (unshare, mount)")
    answer = subprocess.run(
        [*unshare, "sh", "-c", mount, "sh", tmp_path, sys.executable, "import shutil" + FULL_DISK],
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode in (1, 77) and "Traceback" not in answer.stderr:
        pytest.skip(f"needs the right to mount a tmpfs (run as root): {answer.stderr.strip()}")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("passed")


MEMORY = r"""
import sys
from pathlib import Path
from tests.changelog.rows import *

log = open_log(Path(sys.argv[1]))
writer = log.writer()
rows, batch_rows, text = int(sys.argv[2]), int(sys.argv[3]), "x" * int(sys.argv[4])
batch = inserts(table(1), 1090, batch_rows, text=text)
for at in range(rows // batch_rows):
    # A copy, because a batch that is held twice would cost once.
    fresh = batch.take(list(range(batch_rows)))
    writer.append(table(1), fresh, stats_of(fresh))
    del fresh
    assert writer.buffered_bytes < 100 << 20
sealed = writer.seal(Lsn(1100), 0, 1)
assert sum(file.stats.rows for file in sealed.files) == rows
# Not getrusage(): that of a process begins with its parent's.
status = Path("/proc/self/status").read_text()
print(next(int(line.split()[1]) >> 10 for line in status.splitlines() if "VmHWM" in line))
"""


@pytest.mark.parametrize(
    ("rows", "batch_rows", "text"),
    [(3_000_000, 20_000, 100), (300, 4, 1 << 20)],
    ids=["3M rows", "300 rows of 1 MB"],
)
def test_memory_is_flat(tmp_path: Path, rows: int, batch_rows: int, text: int) -> None:
    arguments = [str(argument) for argument in (tmp_path / "log", rows, batch_rows, text)]
    answer = subprocess.run(
        [sys.executable, "-c", MEMORY, *arguments], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    megabytes = int(answer.stdout)
    print(f"{megabytes} MB")
    assert megabytes < 300
