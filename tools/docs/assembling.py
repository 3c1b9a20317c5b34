"""Assembles the folder of the site's sources: docs/, and the pages that are made from the code."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from tools.docs.api import api_pages
from tools.docs.commands import commands_page
from tools.docs.errors import errors_page
from tools.docs.events import events_page
from tools.docs.log_lines import log_lines_page
from tools.docs.metrics import metrics_page
from tools.docs.phases import phases_page
from tools.docs.types import types_page

__all__ = ["COMPLETED", "assemble", "copy_changed", "generated_pages"]

COMPLETED: Mapping[str, Callable[[str], str]] = {"reference/errors.md": errors_page}
"""Pages in docs/ that are completed from the code."""


def generated_pages() -> dict[str, str]:
    """Pages that are only in the site, by path below docs/."""
    return {
        "reference/command-line.md": commands_page(),
        "reference/events.md": events_page(),
        "reference/log-lines.md": log_lines_page(),
        "reference/metrics.md": metrics_page(),
        "reference/phases.md": phases_page(),
        "reference/types.md": types_page(),
        **api_pages(),
    }


def assemble(docs: Path, target: Path) -> None:
    """Replace the target folder."""
    shutil.rmtree(target, ignore_errors=True)
    copy_changed(docs, target)
    for path, text in generated_pages().items():
        page = target / path
        if page.exists():
            raise FileExistsError(f"{docs / path} would hide the page that is made from the code")
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")


def copy_changed(docs: Path, target: Path) -> None:
    """Copy files that were written since to the target."""
    for file in docs.rglob("*"):
        path = file.relative_to(docs).as_posix()
        page = target / path
        if file.is_dir() or (page.exists() and page.stat().st_mtime >= file.stat().st_mtime):
            continue
        page.parent.mkdir(parents=True, exist_ok=True)
        if path in COMPLETED:
            text = COMPLETED[path](file.read_text(encoding="utf-8"))
            page.write_text(text, encoding="utf-8")
        else:
            shutil.copyfile(file, page)
