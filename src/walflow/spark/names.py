"""Names and texts as Spark SQL needs them."""

from __future__ import annotations

__all__ = ["literal", "quoted"]


def quoted(name: str) -> str:
    """A name as Spark SQL needs it."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """The text as a string in Spark SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
