"""Files that stay as they were written: synced, with checksums, and what a disk's refusal means."""

from __future__ import annotations

import errno
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from walflow.errors import DiskFull, LogError

__all__ = [
    "TEMPORARY",
    "disk_errors",
    "remove",
    "sealed",
    "sync",
    "sync_folder",
    "unsealed",
    "write_atomically",
]

TEMPORARY = ".tmp"
"""Ends the name of a file that is not finished; a crash may leave some behind."""


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn the system's refusals into errors that name the folder and what to do."""
    try:
        yield
    except OSError as error:
        raise _explain(error, folder) from error


def _explain(error: OSError, folder: Path) -> LogError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = "an unknown number of"
        with suppress(OSError):
            free = f"{shutil.disk_usage(folder).free:,}"
        return DiskFull(f"the disk of the change log {folder} is full: {free} bytes are free")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return LogError(
            f"the change log {folder} cannot be written: {error}",
            hint="Give this user the right to write there, or name another folder (--log FOLDER).",
        )
    if error.errno in (errno.ENOTDIR, errno.ENOENT, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG):
        return LogError(
            f"the change log {folder} cannot be made: {error}",
            hint="Name another folder: --log FOLDER.",
        )
    return LogError(
        f"the change log {folder} cannot be written: {error}",
        hint="Check the disk or the mount. Postgres keeps what has not been acknowledged.",
    )


def sync(path: Path) -> None:
    """Return once the file's content is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Return once the folder's entries (new, renamed, removed) are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some mounted file systems keep entries by themselves and know no fsync of a folder.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes, *, folder_too: bool = True) -> None:
    """Replace the file, durably: a crash leaves the old content or the new one, nothing else.

    Without ``folder_too`` the caller must sync the folder before relying on the file.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        remove(temporary)
        raise
    if folder_too:
        sync_folder(path.parent)


def remove(path: Path) -> None:
    """Remove a file that nothing refers to. What cannot be removed now goes at the next open."""
    with suppress(OSError):
        path.unlink()


_CHECKSUM = "checksum"


def sealed(content: Mapping[str, Any], indent: int | None = None) -> bytes:
    """A record as JSON, with its checksum."""
    return json.dumps({**content, _CHECKSUM: _of_record(content)}, indent=indent).encode()


def unsealed(text: bytes) -> dict[str, Any]:
    """The record. Raises ValueError if it is none, or not as it was written."""
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("it is no record")
    if content.pop(_CHECKSUM, None) != _of_record(content):
        raise ValueError("its checksum does not match")
    return content


def _of_record(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
