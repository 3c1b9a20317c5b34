"""The commented settings file that ``walflow init`` writes, with the model's descriptions."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from inspect import cleandoc
from typing import Any

from walflow.cli.init_tables import as_yaml, is_sound, table_lines
from walflow.config.keys import field_at, section_at
from walflow.model import TableName
from walflow.source.catalog.survey import SurveyedTable

__all__ = ["Draft", "file_text", "is_written"]

_WIDTH = 98

_COMMON = """
name
source.uri source.publication source.create_publication source.slot source.failover
source.on_slot_lost source.tls.mode source.tls.root_certificate source.tls.certificate
source.tls.key
destination.uri destination.options
tables.include tables.exclude
batch.max_size batch.max_fill_ms
max_table_sync_workers max_copy_connections
table_error_retry_delay_ms table_error_retry_max_attempts on_table_refused on_table_removed
apply.mode apply.on_column_dropped apply.tables
mapping.template mapping.tables
types.numeric
log.folder log.max_bytes log.retain_seconds
store.uri
spark.master spark.remote spark.driver_memory
metrics_address
"""

_EXAMPLES: dict[str, Any] = {
    "source.tls.mode": "verify-full",
    "source.tls.root_certificate": "~/.postgresql/root.crt",
    "source.tls.certificate": "~/.postgresql/postgresql.crt",
    "source.tls.key": "~/.postgresql/postgresql.key",
    "tables.exclude": ["*.audit_*"],
    "spark.remote": "sc://host:15002",
    "metrics_address": "127.0.0.1:9000",
}
"""Examples for settings that have no default."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What is known about the pipeline to be written."""

    name: str
    source: str
    """Its URI without the password."""
    destination: str
    """Empty: it has secrets, and must be given elsewhere."""
    publication: str
    published: bool
    """Whether the publication exists."""
    tables: tuple[SurveyedTable, ...]
    warnings: tuple[str, ...]
    seen: str
    """The database that was read, in words."""
    schema: str | None
    """The file with the schema for editors."""
    going_on: str = ""
    """That the file is for an existing pipeline, in words; empty if it is not."""
    known: Mapping[str, Any] = field(default_factory=dict)
    """The settings of that pipeline, by dotted name."""


def file_text(draft: Draft) -> str:
    """The file. It stays valid if the # in front of settings and sections are removed."""
    said = _said(draft)
    examples = _EXAMPLES | _examples(draft)
    lines = _head(draft)
    opened: tuple[str, ...] = ()
    for dotted in _COMMON.split():
        path = tuple(dotted.split("."))
        lines += _headings(path[:-1], opened, said)
        opened = path[:-1]
        field = field_at(path)
        assert field is not None
        at = "  " * len(opened)
        lines += [*([] if opened else [""]), *_comment(field.description or "", at)]
        if dotted == "tables.include" and "tables.include" not in draft.known:
            lines += table_lines(draft.tables, at, followed=dotted in said)
            continue
        default = field.get_default(call_default_factory=True)
        value = said.get(dotted, examples.get(dotted, default))
        lines.append(f"{at}{'' if dotted in said else '#'}{path[-1]}: {as_yaml(value)}")
    return "\n".join(lines) + "\n"


def is_written(dotted: str) -> bool:
    """Whether the file has this setting."""
    return dotted in _COMMON.split()


def _head(draft: Draft) -> list[str]:
    lines = [] if draft.schema is None else [f"# yaml-language-server: $schema={draft.schema}"]
    lines += _comment(
        f"A pipeline of walflow, written by `walflow init` from {draft.seen}. Settings behind a # "
        "show their defaults, or are examples. To change one, remove the #, in front of its "
        "section too. `walflow run --help` and the docs say where else settings can be given."
    )
    if draft.going_on:
        lines += ["#", *_comment(draft.going_on)]
    for warning in draft.warnings:
        lines += ["#", *_comment(f"WARNING: {warning}")]
    return lines


def _headings(
    section: tuple[str, ...], opened: tuple[str, ...], said: Mapping[str, Any]
) -> Iterator[str]:
    """The sections that begin here, each with its description."""
    for depth in range(1, len(section) + 1):
        path = section[:depth]
        if path == opened[:depth]:
            continue
        model = section_at(path)
        assert model is not None
        at = "  " * (depth - 1)
        if depth == 1:
            yield ""
        yield from _comment(cleandoc(model.__doc__ or ""), at)
        is_said = any(dotted.startswith(".".join(path) + ".") for dotted in said)
        yield f"{at}{'' if is_said else '#'}{path[-1]}:"


def _said(draft: Draft) -> dict[str, Any]:
    """The settings that are not left to their defaults."""
    said: dict[str, Any] = {
        "name": draft.name,
        "source.uri": draft.source,
        "source.publication": draft.publication,
    }
    if draft.destination:
        said["destination.uri"] = draft.destination
    said |= {key: value for key, value in draft.known.items() if is_written(key)}
    if not draft.published:
        said["source.create_publication"] = True
        if any(is_sound(table) for table in draft.tables):
            said.setdefault("tables.include", ...)
    return said


def _examples(draft: Draft) -> dict[str, Any]:
    names = [table.name for table in draft.tables if table.name.name.isidentifier()]
    table = names[0] if names else TableName("public", "orders")
    return {
        "source.slot": f"walflow_{draft.name}",
        "destination.uri": "iceberg:///folder/of/the/tables",
        "log.folder": f"~/.walflow/{draft.name}",
        "store.uri": f"sqlite:////var/lib/walflow/{draft.name}.db",
        "apply.tables": {str(table): {"mode": "history"}},
        "mapping.tables": {str(table): f"sales.{table.name}"},
    }


def _comment(text: str, at: str = "") -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        _WIDTH,
        initial_indent=f"{at}# ",
        subsequent_indent=f"{at}# ",
        break_long_words=False,
        break_on_hyphens=False,
    )
