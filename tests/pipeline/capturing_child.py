"""A process that captures until it is killed, or until so many rows are durable.

It says "running" when it begins to, and at its end the most memory it had, in bytes.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.pipeline.capturing import Capture
from walflow.model import Lsn


def main(
    uri: str, folder: str, slot: str, backlog_bytes: str, rows: str = "0", holds: str = ""
) -> None:
    """``holds``: no bulk read comes to its end."""
    capture = Capture(uri, Path(folder), slot=slot, backlog_bytes=int(backlog_bytes))
    if holds:
        capture.receiver._has_room = lambda: False  # type: ignore[method-assign]
    with capture:
        print("running", flush=True)
        while True:
            capture.receiver.check()
            durable = sum(
                file.stats.rows
                for segment in capture.log.segments(Lsn(0))
                for file in segment.files
            )
            if int(rows) and durable >= int(rows):
                break
            time.sleep(0.05)
    print(peak_memory())


def peak_memory() -> int:
    """In bytes. Not ru_maxrss: that begins with what the parent had when it forked."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if "VmHWM" in line)


if __name__ == "__main__":
    main(*sys.argv[1:])
