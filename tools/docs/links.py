"""Checks the built site: every internal link, picture and anchor must exist."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["broken_links"]


@dataclass(slots=True)
class _Page:
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = _Page()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (name == "name" and tag == "a"):
                self.page.anchors.add(value)
            elif name in ("href", "src"):
                self.page.links.append(value)


def broken_links(site: Path) -> list[str]:
    """One line for each, with the page that has it."""
    # The page for what is not found is shown at any address; its links begin at the site's root.
    files = [file for file in sorted(site.rglob("*.html")) if file.name != "404.html"]
    pages = {file: _read(file) for file in files}
    return [
        f"{file.relative_to(site)}: {link}"
        for file, page in pages.items()
        for link in _broken(site, file, page, pages)
    ]


def _read(file: Path) -> _Page:
    reader = _Reader()
    reader.feed(file.read_text(encoding="utf-8"))
    return reader.page


def _broken(site: Path, file: Path, page: _Page, pages: dict[Path, _Page]) -> Iterator[str]:
    for link in dict.fromkeys(page.links):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
        if target.is_dir():
            target /= "index.html"
        if not target.is_relative_to(site) or not target.exists():
            yield link
        elif parts.fragment and target in pages:
            # "__" begins anchors that the theme's scripts make.
            anchor = unquote(parts.fragment)
            if anchor not in pages[target].anchors and not anchor.startswith("__"):
                yield link
