"""Names and texts as Spark SQL needs them."""

from __future__ import annotations

__all__ = ["SOURCE", "TARGET", "literal", "quoted"]

TARGET, SOURCE = "_walflow_target", "_walflow_source"
"""What a table and what goes into it are called in queries over columns of a source. A source has
no column whose name begins with ``_walflow`` (see RESERVED_COLUMNS), so none is taken for these; a
table called ``t`` would be, where a column is."""


def quoted(name: str) -> str:
    """A name as Spark SQL needs it."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """The text as a string in Spark SQL, which puts settings in the place of ``${...}``."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024")
    return f"'{escaped}'"
