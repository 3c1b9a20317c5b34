"""Findings of ``walflow check``, as people and as machines read them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.status import Status
from rich.text import Text

from walflow.checks.findings import Finding, Verdict
from walflow.config import Settings
from walflow.errors import CheckFailed
from walflow.redaction import redacted
from walflow.source.connection import redact

__all__ = ["Findings"]

_STYLES = {
    Verdict.OK: "green",
    Verdict.WARNING: "yellow",
    Verdict.ERROR: "bold red",
    Verdict.SKIPPED: "dim",
}
_WIDTH = max(len(verdict) for verdict in Verdict)


class Findings:
    """Collects them, and prints each as it comes, under a heading for each area."""

    def __init__(
        self, settings: Settings, found_again: Callable[[str], str], *, verbose: bool
    ) -> None:
        """``found_again`` adds the options that find the pipeline to commands."""
        self.doing = ""
        """The slow step that runs now."""
        self._settings = settings
        self._found_again = found_again
        self._verbose = verbose
        self._all: list[Finding] = []
        self._console: Console | None = None
        self._status: Status | None = None
        self._area = ""
        self._stopped = False

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Print the findings that are taken inside, and a summary."""
        console = self._console = Console(highlight=False)
        source = redact(self._settings.source.uri.get_secret_value())
        way = f"{source} → {redacted(self._settings.destination.uri)}"
        console.print(Text.assemble((self._settings.name, "bold"), f"  {way}"), soft_wrap=True)
        if console.is_terminal:
            self._status = console.status("")
        try:
            if self._status is not None:
                self._status.start()
            yield
        finally:
            if self._status is not None:
                self._status.stop()
        if not self._stopped:
            console.print(Text(f"\n{self._sum()}", style="bold"), soft_wrap=True)

    def stop(self) -> None:
        """Print no summary. Repeats safely."""
        self._stopped = True
        self._tell("removing what was created (Ctrl-C again stops at once)")

    def take(self, found: Finding | str) -> None:
        """A finding, or the slow step that begins."""
        if isinstance(found, str):
            self._tell(found)
            return
        self.doing = ""
        self._all.append(found)
        if self._console is not None and (self._verbose or not found.detail):
            self._print(self._console, found)

    def _tell(self, doing: str) -> None:
        self.doing = doing
        if self._status is not None:
            self._status.update(f"{doing} …")

    def _print(self, console: Console, found: Finding) -> None:
        if found.area != self._area:
            self._area = found.area
            console.print(Text(f"\n{found.area}", style="bold cyan"))
        word = (f"  {found.verdict:{_WIDTH}}  ", _STYLES[found.verdict])
        # The terminal wraps long lines: text to paste must not have line breaks of ours.
        message = self._words(found.message)
        console.print(Text.assemble(word, message), soft_wrap=True)
        if found.hint:
            indent = " " * (_WIDTH + 4)
            console.print(
                Text.assemble(indent, ("→ ", "bold"), self._words(found.hint)), soft_wrap=True
            )

    def _words(self, text: str) -> str:
        return self._found_again(redacted(" ".join(text.split())))

    def _count(self, verdict: Verdict) -> int:
        return sum(found.verdict is verdict for found in self._all)

    def _sum(self) -> str:
        parts = [
            f"{count} {word}{'' if count == 1 else 's'}"
            for verdict, word in ((Verdict.ERROR, "error"), (Verdict.WARNING, "warning"))
            if (count := self._count(verdict))
        ]
        found = f"{' and '.join(parts)} among" if parts else "All is well:"
        return f"{found} {len(self._all)} checks."

    def as_json(self) -> str:
        content = {
            "pipeline": self._settings.name,
            "ok": not self._count(Verdict.ERROR),
            "errors": self._count(Verdict.ERROR),
            "warnings": self._count(Verdict.WARNING),
            "checks": [
                {
                    "area": found.area,
                    "check": found.check,
                    "verdict": found.verdict,
                    "message": self._words(found.message),
                    "hint": self._words(found.hint),
                    "code": found.code,
                }
                for found in self._all
            ],
        }
        return json.dumps(content, ensure_ascii=False)

    def exit_code(self, *, strict: bool) -> int:
        for found in self._all:
            if found.verdict is Verdict.ERROR:
                return found.exit_code
        return CheckFailed.exit_code if strict and self._count(Verdict.WARNING) else 0
