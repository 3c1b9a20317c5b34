"""The change log: whether its folder can be written, and has enough room."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from walflow.changelog import LogIdentity
from walflow.changelog.durable import disk_errors, sync
from walflow.changelog.identity import Head, check_ours
from walflow.checks.findings import Area, Facts, Finding, attempted, ok, warning
from walflow.checks.scratch import existing_folder, made_folder, scratch_id
from walflow.units import human_bytes

__all__ = ["check_log"]

_AREA = Area.LOG
_SCRATCH_BYTES = 1 << 20


def check_log(facts: Facts) -> Iterator[Finding]:
    yield from attempted(_AREA, "folder", _folder(facts))
    yield from attempted(_AREA, "space", _space(facts))


def _folder(facts: Facts) -> Iterator[Finding]:
    settings, server = facts.settings, facts.server
    folder = settings.log_folder
    with disk_errors(folder):
        if server is not None:
            identity = LogIdentity(settings.name, str(server.system_identifier), settings.slot)
            check_ours(folder, identity)
        with made_folder(folder):
            scratch = folder / f".check-{scratch_id()}"
            try:
                scratch.write_bytes(bytes(_SCRATCH_BYTES))
                sync(scratch)
            finally:
                scratch.unlink(missing_ok=True)
    yield ok(_AREA, "folder", f"{folder} can be written")


def _space(facts: Facts) -> Iterator[Finding]:
    settings = facts.settings
    folder, limit = settings.log_folder, settings.log.max_bytes
    with disk_errors(folder):
        room = shutil.disk_usage(existing_folder(folder)).free + _size(folder)
        begun = Head.load(folder) is not None
    # A pipeline that has begun copies only tables that join later.
    copies = 0 if begun else sum(table.bytes for table in facts.tables)
    elsewhere = "name a folder on a larger disk (--log FOLDER)"
    if room < copies:
        yield warning(
            _AREA,
            "space",
            f"{human_bytes(room)} are free for the log, and the tables to copy have "
            f"{human_bytes(copies)} (in the log they are compressed, often to a third). A full "
            "disk stops the copy; nothing is lost.",
            f"Free space, or {elsewhere}.",
        )
    if room < limit:
        yield warning(
            _AREA,
            "space",
            f"The log may grow to {human_bytes(limit)} while the destination is away "
            f"(log.max_bytes), but only {human_bytes(room)} are free.",
            f"Let receiving pause before the disk is full: --set log.max_bytes={room * 9 // 10}, "
            f"or {elsewhere}.",
        )
    if room >= max(copies, limit):
        yield ok(
            _AREA,
            "space",
            f"{human_bytes(room)} are free (the log pauses at {human_bytes(limit)}"
            + (f"; the tables to copy have {human_bytes(copies)})" if copies else ")"),
        )


def _size(folder: Path) -> int:
    """The size of the existing log. A pipeline may be writing it."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += Path(place, name).stat().st_size
    return total
