"""Folders that exist only during a check."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from walflow.paths import is_there

__all__ = ["existing_folder", "made_folder", "removed_if_made", "scratch_id"]


def scratch_id() -> str:
    """A part of a unique name."""
    return uuid.uuid4().hex[:12]


def existing_folder(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    return next(place for place in (folder, *folder.parents) if is_there(place) and place.is_dir())


@contextmanager
def removed_if_made(folder: Path) -> Iterator[None]:
    """Remove the folders that are created in the block, unless they are not empty."""
    missing = [place for place in (folder, *folder.parents) if not is_there(place)]
    try:
        yield
    finally:
        with suppress(OSError):
            for place in missing:
                place.rmdir()


@contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """Create the folder if it is missing, and remove it after the block."""
    with removed_if_made(folder):
        folder.mkdir(parents=True, exist_ok=True)
        yield
