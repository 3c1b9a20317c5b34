"""The commented settings file that ``walflow init`` writes: settings, tables, and URIs without
their passwords."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import cleandoc
from typing import Any
from urllib.parse import quote

import yaml
from psycopg.conninfo import conninfo_to_dict

from walflow.config.keys import field_at, section_at, variable_of
from walflow.model import TableName
from walflow.redaction import redacted
from walflow.source.catalog.publication import identity_sql
from walflow.source.catalog.survey import SurveyedTable
from walflow.units import human_bytes, human_count

__all__ = [
    "Draft",
    "WrittenUri",
    "file_text",
    "is_written",
    "written_destination",
    "written_source",
]

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
    """What the file says about the pipeline."""

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
    noted: Mapping[str, Any] = field(default_factory=dict)
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
        if dotted == "tables.include" and "tables.include" not in draft.noted:
            lines += _table_lines(draft.tables, at, followed=dotted in said)
            continue
        default = field.get_default(call_default_factory=True)
        value = said.get(dotted, examples.get(dotted, default))
        lines.append(f"{at}{'' if dotted in said else '#'}{path[-1]}: {_as_yaml(value)}")
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
    said |= {key: value for key, value in draft.noted.items() if is_written(key)}
    if not draft.published:
        said["source.create_publication"] = True
        if any(_is_sound(table) for table in draft.tables):
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


_PASSWORD = re.compile(r"([a-z][a-z0-9+.\-]*://[^:/?#@]*:)(.+)(@[^@]*)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class WrittenUri:
    text: str
    """With ``${NAME}`` in place of secrets; empty if the secrets cannot be replaced."""
    variables: tuple[str, ...] = ()
    """The environment variables that must be set."""


def written_source(uri: str) -> WrittenUri:
    """A source that libpq can read, URI or ``key=value``, as a URI."""
    given = {name: str(value) for name, value in conninfo_to_dict(uri).items()}
    variables = []
    user = quote(given.pop("user", ""), safe="")
    if given.pop("password", ""):
        variables.append("WALFLOW_SOURCE_PASSWORD")
        user += ":${WALFLOW_SOURCE_PASSWORD}"
    where = ""
    if not given.get("host", "").startswith("/"):
        hosts, ports = given.pop("host", "").split(","), given.pop("port", "").split(",")
        if len(ports) == 1:
            ports *= len(hosts)
        where = ",".join(map(_host, hosts, ports))
    database = quote(given.pop("dbname", ""), safe="")
    parameters = []
    for name, value in given.items():
        if name == "sslpassword":
            variables.append("WALFLOW_SOURCE_SSLPASSWORD")
            parameters.append("sslpassword=${WALFLOW_SOURCE_SSLPASSWORD}")
        else:
            parameters.append(f"{name}={quote(value, safe='/')}")
    return WrittenUri(
        f"postgresql://{user}{'@' if user else ''}{where}/{database}"
        + ("?" + "&".join(parameters) if parameters else ""),
        tuple(variables),
    )


def _host(host: str, port: str) -> str:
    named = f"[{host}]" if ":" in host else quote(host, safe="")
    return f"{named}:{port}" if port else named


def written_destination(uri: str) -> WrittenUri:
    """A destination's URI; empty if it has secrets elsewhere than in the password."""
    found = _PASSWORD.fullmatch(uri)
    if found is None:
        return _whole(uri.replace("${", "$${"), ())
    before, _, behind = (part.replace("${", "$${") for part in found.groups())
    name = "WALFLOW_DESTINATION_PASSWORD"
    return _whole(f"{before}${{{name}}}{behind}", (name,))


def _whole(text: str, variables: tuple[str, ...]) -> WrittenUri:
    plain = text.replace("${WALFLOW_DESTINATION_PASSWORD}", "***")
    if redacted(plain) != plain:
        return WrittenUri("", (variable_of(("destination", "uri")),))
    return WrittenUri(text, variables)


def _is_sound(table: SurveyedTable) -> bool:
    """Whether the table can be published and followed as it is."""
    return not (table.without_identity or table.reserved or table.unreadable)


def _table_lines(tables: Sequence[SurveyedTable], at: str, *, followed: bool) -> Iterator[str]:
    """The list of tables, commented out unless ``followed``. Tables that cannot be followed as
    they are, are always commented out."""
    if followed and not all(map(_is_sound, tables)):
        yield f"{at}# Tables behind a # cannot be followed as they are."
    yield f"{at}{'' if followed else '#'}include:"
    for table in tables:
        for note in _notes(table):
            yield f"{at}  # {note}"
        mark = "" if followed and _is_sound(table) else "#"
        yield f"{at}  {mark}- {_as_yaml(_pattern(table))}  # {_facts(table)}"
    if not tables:
        yield f"{at}  #- public.*"


def _pattern(table: SurveyedTable) -> str:
    """The pattern that is this table alone."""
    return re.sub(r"([*?[])", r"[\1]", str(table.name))


def _facts(table: SurveyedTable) -> str:
    counted = table.rows or not any(part.pages for part in table.relations)
    rows = f"about {human_count(table.rows)} rows" if counted else "rows not counted yet"
    if table.key:
        key = f"key {', '.join(table.key)}"
    else:
        key = "no key" if table.without_identity else "no key: rows are found by all columns"
    return " ".join(f"{rows}, {human_bytes(table.bytes)}, {key}".split())


def _notes(table: SurveyedTable) -> Iterator[str]:
    if table.without_identity:
        parts = [name for name in table.without_identity if name != table.name]
        which = f" in {', '.join(map(str, parts))}" if parts else ""
        yield (
            f"{_shown(table)} has no primary key{which}: updates and deletes need REPLICA IDENTITY "
            "FULL:"
        )
        yield f"  {_one_line(identity_sql(table.without_identity))}"
    if table.unreadable:
        yield f"This role cannot read all of {_shown(table)}: see the top of this file."
    if table.reserved:
        names = _one_line(", ".join(table.reserved))
        yield f"{_shown(table)} has columns with names that walflow reserves: {names}."
    if table.strings:
        columns = ", ".join(f"{name} ({kind})" for name, kind in table.strings)
        yield f"{_shown(table)}: these become strings: {_one_line(columns)}"


def _shown(table: SurveyedTable) -> str:
    return _one_line(str(table.name))


def _one_line(text: str) -> str:
    """Names may have anything in them; a comment ends with its line."""
    return " ".join(text.split())


def _as_yaml(value: Any) -> str:
    """The value on one line."""
    if isinstance(value, str):
        try:
            if value and yaml.safe_load(f"x: {value}") == {"x": value}:
                return value
        except yaml.YAMLError:
            pass
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        value = list(value)
    return (
        yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()
    )
