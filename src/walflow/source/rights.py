"""What a role may not read, and the SQL that lets it."""

from __future__ import annotations

from collections.abc import Sequence

from walflow.errors import NoSelectRight
from walflow.model import TableName, quote_identifier

__all__ = ["select_refusal"]


def select_refusal(
    role: str, forbidden: Sequence[TableName], hidden: Sequence[TableName]
) -> NoSelectRight | None:
    """The error for tables that the role may not read, and those of which row security shows it
    only a part; None if there are none."""
    name = quote_identifier(role)
    if hidden:
        return NoSelectRight(
            f'Row security hides rows of {_listed(hidden)} from the role "{role}", so a copy would '
            "not be whole.",
            hint=f"As superuser: ALTER ROLE {name} BYPASSRLS;",
        )
    if not forbidden:
        return None
    schemas = ", ".join(map(quote_identifier, sorted({table.schema for table in forbidden})))
    tables = ", ".join(table.quoted for table in forbidden)
    return NoSelectRight(
        f'The role "{role}" may not read {_listed(forbidden)}.',
        hint=f"Run: GRANT USAGE ON SCHEMA {schemas} TO {name}; GRANT SELECT ON {tables} TO {name};",
    )


def _listed(tables: Sequence[TableName]) -> str:
    return ", ".join(str(table) for table in tables)
