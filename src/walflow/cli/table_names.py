"""Names of tables on the command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable
from difflib import get_close_matches

from walflow.errors import UnknownTable
from walflow.model import TableName

__all__ = ["find_table", "read_name"]

_PART = r'(?:"(?:[^"]|"")+"|[^".]+)'
_NAME = re.compile(rf"(?:(?P<schema>{_PART})\.)?(?P<name>{_PART})")

_ALIKE = 0.75
"""High, because the names of one schema all begin alike."""


def find_table(text: str, known: Collection[TableName]) -> TableName:
    """The known table that the text names: ``schema.table``, or ``table`` for one in public, each
    part in double quotes or not. Raises UnknownTable, which names the closest.

    An exact match comes first, then the name as SQL reads it: lower case unless quoted.
    """
    for meant in _readings(text):
        if meant in known:
            return meant
    literal = [name for name in known if str(name) == text]
    if len(literal) == 1:
        return literal[0]
    if literal:
        raise UnknownTable(
            f"{text!r} names several tables.",
            hint="Name one: " + " or ".join(shlex.quote(name.quoted) for name in literal),
        )
    raise UnknownTable(f"The pipeline has no table {text}.", hint=_closest(text, known))


def read_name(text: str) -> TableName:
    """The table that the text names, if no tables are known. Raises UnknownTable."""
    for meant in _readings(text):
        return meant
    raise UnknownTable(
        f"{text!r} is not the name of a table.",
        hint="Write schema.table; names with dots or quotes as in SQL, in double quotes.",
    )


def _readings(text: str) -> Iterable[TableName]:
    match = _NAME.fullmatch(text)
    if match is None:
        return
    schema, name = match["schema"] or "public", match["name"]
    yield TableName(_unquoted(schema), _unquoted(name))
    yield TableName(*(_unquoted(part, fold=True) for part in (schema, name)))


def _unquoted(part: str, *, fold: bool = False) -> str:
    if part.startswith('"'):
        return part[1:-1].replace('""', '"')
    return part.lower() if fold else part


def _closest(text: str, known: Collection[TableName]) -> str:
    names = {str(name): name for name in known}
    plain = text.replace('"', "")
    # By the whole name, or by the table's name alone where the schema differs.
    last = plain.rpartition(".")[2]
    close = dict.fromkeys(get_close_matches(plain, names, n=3, cutoff=_ALIKE))
    close |= dict.fromkeys(str(name) for name in sorted(known) if name.name == last)
    if close:
        return f"Did you mean {' or '.join([*close][:3])}?"
    return "`walflow status` lists its tables."
