"""The page of events that destinations get, from the code that makes them."""

from __future__ import annotations

from collections.abc import Iterator

from tools.docs.markdown import code, said, table
from walflow.changelog.parquet import META_COLUMNS
from walflow.model import ChangeType, Column, PgType, ReplicaIdentity, TableName, TableSchema
from walflow.spark.changes import changes_schema
from walflow.spark.net import net_changes
from walflow.spark.net_keyless import net_keyless

__all__ = ["events_page"]

_INTRODUCTION = """\
# Events

What a destination gets in `write_events`, and what the files of the change log contain.
[Your own store and destination](../tutorials/your-own-store-and-destination.md) says how to write a
destination; [modes](modes.md) says how tables in a lake apply events.
"""

_COLUMNS = {
    "_change_type": "The kind of change, see above.",
    "_lsn": "Position of the transaction's commit, as a number.",
    "_seq": "Order of the change inside its transaction. (`_lsn`, `_seq`) is the order of all "
    "changes, is unique, and is the same in every replay.",
    "_timestamp": "Time of the commit, by the source's clock.",
    "_xid": "The transaction's number.",
    "_unchanged": "Names of columns whose value Postgres did not send because it did not change "
    "(large values, TOAST). They are null in this row.",
    "_old": "The old key, if the change gave the row another one; the old row, with "
    "`REPLICA IDENTITY FULL` and no key.",
    "_exact": "Postgres's text of values that a type [cannot hold](types.md), by column.",
}

_NUMBER = PgType(name="bigint", oid=20, base=20)
_TEXT = PgType(name="text", oid=25, base=25)


def events_page() -> str:
    lines = [_INTRODUCTION, "## Kinds of change", ""]
    lines += [", ".join(code(kind.value) for kind in ChangeType) + ".", ""]
    lines += [
        "## Columns of a change",
        "",
        "A table `(id bigint PRIMARY KEY, name text)` gives:",
        "",
    ]
    declared = _declared()
    assert tuple(declared)[: len(META_COLUMNS)] == META_COLUMNS == tuple(_COLUMNS)
    lines += table(
        ["Column", "Type", ""],
        ([code(name), code(kind), _COLUMNS.get(name, "")] for name, kind in declared.items()),
    )
    lines += ["## Net changes", "", "`TableChanges.net()` of a table with a key:", ""]
    lines += [said(net_changes), "", "Without a key:", "", said(net_keyless), ""]
    lines += ["## What a destination on Spark gets", ""]
    lines += _described("walflow.destinations.base", "TableChanges", "FormerChanges")
    lines += ["## What a rowwise destination gets", ""]
    lines += _described("walflow.destinations.rowwise", "Insert", "Update", "Delete", "Truncate")
    lines += ["With `transactions = True`, these too:", ""]
    lines += _described("walflow.destinations.rowwise", "Begin", "Commit", "Relation")
    return "\n".join(lines)


def _described(module: str, *names: str) -> Iterator[str]:
    for name in names:
        yield f"::: {module}.{name}"
        yield "    options: {heading_level: 3, show_root_full_path: false}"
        yield ""


def _declared() -> dict[str, str]:
    """Names and types, as Spark is told to read them."""
    schema = TableSchema(
        oid=1,
        name=TableName("public", "people"),
        columns=(
            Column(name="id", type=_NUMBER, spark_type="bigint", nullable=False),
            Column(name="name", type=_TEXT, spark_type="string"),
        ),
        key=("id",),
        replica_identity=ReplicaIdentity.DEFAULT,
    )
    columns: dict[str, str] = {}
    rest = changes_schema(schema)
    while rest:
        _, name, rest = rest.split("`", 2)
        # A struct's fields have names in quotes too, so the next column begins outside of one.
        depth, end = 0, len(rest)
        for at, character in enumerate(rest):
            depth += {"<": 1, ">": -1}.get(character, 0)
            if character == "," and not depth:
                end = at
                break
        columns[name], rest = rest[:end].strip().replace("`", ""), rest[end + 1 :]
    return columns
