"""The page of errors: docs/reference/errors.md, with the facts of each error."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tools.docs.markdown import code, said, table
from walflow import errors
from walflow.cli.failures import exit_codes
from walflow.errors import ErrorKind, WalflowError

__all__ = ["all_errors", "errors_page", "sections"]

_HEADING = re.compile(r"^### (?P<name>\w+)$", re.MULTILINE)
_TABLE_HERE = "<!-- table of errors -->"


def all_errors() -> dict[str, type[WalflowError]]:
    found = {name: getattr(errors, name) for name in errors.__all__}
    return {
        name: one
        for name, one in found.items()
        if issubclass(one, WalflowError) and one is not WalflowError
    }


def sections(page: str) -> dict[str, str]:
    """The text about each error, by the name in its heading."""
    starts = list(_HEADING.finditer(page))
    ends = [start.start() for start in starts[1:]] + [len(page)]
    return {
        start["name"]: page[start.end() : end].partition("\n## ")[0].strip()
        for start, end in zip(starts, ends, strict=True)
    }


def errors_page(page: str) -> str:
    """The hand-written page, with the table and the facts of each error added."""
    found = all_errors()
    with_facts = _HEADING.sub(lambda match: "\n".join(_section(found[match["name"]])), page)
    assert with_facts.count(_TABLE_HERE) == 1
    return with_facts.replace(_TABLE_HERE, "\n".join(_overview(found)))


def _overview(found: dict[str, type[WalflowError]]) -> Iterator[str]:
    yield from exit_codes().replace("Exit codes:", "```text", 1).splitlines()
    yield from ("```", "")
    kinds = list(ErrorKind)
    yield from table(
        ["Exit code", "Error", "Kind", "Tried again automatically"],
        (
            [
                str(error.exit_code),
                f"[{name}](#{name.lower()})",
                error.kind.value,
                "yes" if error.retry else "",
            ]
            for name, error in sorted(
                found.items(), key=lambda one: (kinds.index(one[1].kind), one[1].exit_code)
            )
        ),
    )


def _section(error: type[WalflowError]) -> Iterator[str]:
    yield f"### {error.__name__}"
    yield ""
    told = " ".join(said(error).split())
    yield f"**{told}**"
    yield ""
    again = "tried again automatically" if error.retry else "not tried again automatically"
    yield f"Exit code {code(error.exit_code)}, {again}."
    if error.default_hint:
        yield ""
        yield f"> {error.default_hint}"
