"""A process that works on a change log and is killed before its n-th call that changes the disk.

    python -m tests.changelog.dying FOLDER

For n = 0, 1, 2, … a child works in FOLDER/n and dies (SIGKILL) there, until one gets through.
What a child knows to be done stands in FOLDER/n.done, a line a step.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.changelog.rows import inserts, open_log, seal_rows, stats_of, table
from walflow.changelog import ChangeLog
from walflow.changelog import journal as journal_module
from walflow.model import Lsn

CALLS = ("fsync", "write", "ftruncate", "replace", "unlink", "mkdir", "rmdir")


def large_segment(log: ChangeLog, upto: int) -> None:
    """Files roll, a schema changes, and rows of two tables mix."""
    writer = log.writer()
    for first in range(0, 600, 200):
        for schema in (table(1), table(2, upto - 50, ("email",))):
            batch = inserts(schema, upto - 10, 200, first=first)
            writer.append(schema, batch, stats_of(batch))
    writer.seal(Lsn(upto), 0, 1)


STEPS: list[tuple[str, Callable[[ChangeLog], object]]] = [
    ("sealed 1100", lambda log: seal_rows(log, 1100, {1: 3})),
    ("sealed 1200", lambda log: large_segment(log, 1200)),
    ("ended 1250", lambda log: log.writer().advance(Lsn(1250), now=True)),
    ("retired 1100", lambda log: log.retire(Lsn(1100), 0)),
    ("sealed 1300", lambda log: seal_rows(log, 1300, {1: 3, 3: 1})),
    ("restarted 5000", lambda log: log.restart(Lsn(5000))),
    ("sealed 5100", lambda log: seal_rows(log, 5100, {1: 3})),
]


def die_before(call: int) -> None:
    count = 0

    def counting(real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            if count == call:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
            return real(*arguments, **options)

        return counted

    for name in CALLS:
        setattr(os, name, counting(getattr(os, name)))


def work(folder: Path, done: Path) -> None:
    journal_module.ROTATE_BYTES = 600
    with done.open("a", buffering=1) as progress:
        log = open_log(folder, file_bytes=5_000, buffer_bytes=20_000)
        progress.write("opened\n")
        for name, step in STEPS:
            step(log)
            progress.write(name + "\n")
        log.close()


def main(folder: Path) -> None:
    # Once before the forks, so that not every child sets up Arrow anew.
    work(folder / "warm", folder / "warm.done")
    for call in range(1000):
        child = os.fork()
        if child == 0:
            die_before(call)
            work(folder / str(call), folder / f"{call}.done")
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -signal.SIGKILL:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
