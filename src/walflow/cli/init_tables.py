"""The tables in the settings file that ``walflow init`` writes, each with notes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from walflow.source.catalog.publication import identity_sql
from walflow.source.catalog.survey import SurveyedTable
from walflow.units import human_bytes, human_count

__all__ = ["as_yaml", "is_sound", "table_lines"]


def is_sound(table: SurveyedTable) -> bool:
    """Whether the table can be published and followed as it is."""
    return not (table.without_identity or table.reserved or table.unreadable)


def table_lines(tables: Sequence[SurveyedTable], at: str, *, followed: bool) -> Iterator[str]:
    """The list of tables, commented out unless ``followed``. Tables that cannot be followed as
    they are, are always commented out."""
    if followed and not all(map(is_sound, tables)):
        yield f"{at}# Tables behind a # cannot be followed as they are."
    yield f"{at}{'' if followed else '#'}include:"
    for table in tables:
        for note in _notes(table):
            yield f"{at}  # {note}"
        mark = "" if followed and is_sound(table) else "#"
        yield f"{at}  {mark}- {as_yaml(_pattern(table))}  # {_facts(table)}"
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


def as_yaml(value: Any) -> str:
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
