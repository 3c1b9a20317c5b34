"""Folders that are there for the length of a check only."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from walflow.paths import is_there

__all__ = ["existing_folder", "made_folder", "removed_if_made", "scratch_id"]


def scratch_id() -> str:
    """For names that nobody else has."""
    return uuid.uuid4().hex[:12]


def existing_folder(folder: Path) -> Path:
    """The folder, or what is there of the way to it."""
    return next(place for place in (folder, *folder.parents) if is_there(place) and place.is_dir())


@contextmanager
def removed_if_made(folder: Path) -> Iterator[None]:
    """What is made of the folder inside goes again, unless something is in it by then."""
    missing = [place for place in (folder, *folder.parents) if not is_there(place)]
    try:
        yield
    finally:
        with suppress(OSError):
            for place in missing:
                place.rmdir()


@contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """The folder; if it is missing, for the length of the block."""
    with removed_if_made(folder):
        folder.mkdir(parents=True, exist_ok=True)
        yield
