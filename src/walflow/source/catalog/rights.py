"""The tables that a role may not read, and the GRANTs that allow it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from walflow.errors import NoSelectRight
from walflow.model import TableName, quote_identifier

__all__ = ["PLACE", "Unreadable", "select_refusal"]

PLACE = "ctid"
"""The system column with a row's location. A role with column rights needs it granted like any
other column."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A table that our role may not read completely."""

    table: TableName
    hidden: bool
    """Row security may hide rows."""
    closed: bool
    """The role may not use the table's schema."""
    columns: tuple[str, ...] | None
    """The columns that it lacks, if it may SELECT others. None: it may not SELECT any."""


def select_refusal(role: str, unreadable: Sequence[Unreadable]) -> NoSelectRight | None:
    """The error for these tables. None if there are none."""
    name = quote_identifier(role)
    hidden = [found.table for found in unreadable if found.hidden]
    if hidden:
        return NoSelectRight(
            f'Row security hides rows of {_listed(hidden)} from the role "{role}", so a copy would '
            "be incomplete.",
            hint=f"As superuser: ALTER ROLE {name} BYPASSRLS;",
        )
    if not unreadable:
        return None
    listed = ", ".join(
        f"{found.table} (columns {', '.join(found.columns)})" if found.columns else f"{found.table}"
        for found in unreadable
    )
    hint = f"Run: {' '.join(_grants(unreadable, name))}"
    if any(found.columns and PLACE in found.columns for found in unreadable):
        hint += f" ({PLACE} is the place of a row: large tables are read in ranges of it.)"
    return NoSelectRight(f'The role "{role}" may not read {listed}.', hint=hint)


def _grants(unreadable: Sequence[Unreadable], role: str) -> list[str]:
    whole = [found.table for found in unreadable if found.columns is None]
    schemas = {found.table.schema for found in unreadable if found.closed or found.columns is None}
    grants = []
    if schemas:
        grants.append(f"USAGE ON SCHEMA {', '.join(map(quote_identifier, sorted(schemas)))}")
    if whole:
        grants.append(f"SELECT ON {', '.join(table.quoted for table in whole)}")
    for found in unreadable:
        if found.columns:
            columns = ", ".join(map(quote_identifier, found.columns))
            grants.append(f"SELECT ({columns}) ON {found.table.quoted}")
    return [f"GRANT {grant} TO {role};" for grant in grants]


def _listed(tables: Sequence[TableName]) -> str:
    return ", ".join(str(table) for table in tables)
