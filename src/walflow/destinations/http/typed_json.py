"""Values, rows and changes in the JSON of the protocol (docs/reference/http.md)."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from walflow.destinations.arrow import own_and_old
from walflow.model import ChangeType, Lsn, TableSchema

__all__ = ["json_events", "json_rows", "json_table", "json_values"]

Object = dict[str, Any]


def json_table(table: TableSchema) -> Object:
    """The table's name and columns."""
    return {
        "schema": table.name.schema,
        "name": table.name.name,
        "columns": [
            {
                "name": column.name,
                "type": column.spark_type,
                "postgres_type": column.type.name,
                "nullable": column.nullable,
                "key": column.name in table.key,
            }
            for column in table.columns
        ],
    }


def json_rows(table: TableSchema, batch: pa.RecordBatch) -> list[Object]:
    """Rows of a copy: ``{"row": {…}}``, with ``"exact"`` where a value has a text of its own."""
    exact = _column(batch, "_exact")
    rows = _objects(batch, table.column_names)
    return [{"row": row, **_given(exact=texts)} for row, texts in zip(rows, exact, strict=True)]


def json_events(table: TableSchema, batch: pa.RecordBatch) -> list[Object]:
    """Changes, in their order."""
    names = table.column_names
    identity = [column.name for column in table.identity_columns]
    columns = [
        _column(batch, name)
        for name in ("_change_type", "_lsn", "_seq", "_timestamp", "_xid", "_unchanged", "_exact")
    ]
    changes = zip(*columns, _old(batch), _objects(batch, names), strict=True)
    events: list[Object] = []
    for kind, lsn, seq, timestamp, xid, unchanged, texts, old, row in changes:
        event: Object = {
            "type": kind,
            "lsn": str(Lsn(lsn)),
            "seq": int(seq),
            "timestamp": timestamp,
            "xid": xid,
        }
        exact, old_exact = own_and_old(texts)
        if kind == ChangeType.DELETE:
            event |= {
                "old": {name: row[name] for name in identity},
                **_given(old_exact=exact),
            }
        elif kind != ChangeType.TRUNCATE:
            left_out = frozenset(unchanged or ())
            event["row"] = {name: value for name, value in row.items() if name not in left_out}
            event |= _given(unchanged=sorted(left_out), old=old, exact=exact, old_exact=old_exact)
        events.append(event)
    return events


def json_values(array: Any) -> list[Any]:
    """The values as what ``json.dumps`` writes as the protocol has them."""
    kind = array.type
    if pa.types.is_list(kind):
        elements = iter(json_values(array.flatten()))
        lengths = pc.list_value_length(array).to_pylist()
        return [None if n is None else list(islice(elements, n)) for n in lengths]
    if pa.types.is_map(kind):
        return list(array.to_pylist(maps_as_pydicts="strict"))
    if pa.types.is_int64(kind) or pa.types.is_date(kind):
        return list(array.cast(pa.string()).to_pylist())
    if pa.types.is_timestamp(kind):
        # 2026-11-15 12:00:00.123456, and Z if there is a zone, which is UTC.
        return list(pc.replace_substring(array.cast(pa.string()), " ", "T").to_pylist())
    if pa.types.is_float32(kind):
        # The shortest text of the number itself, not of the double next to it.
        texts = array.cast(pa.string()).to_pylist()
        return [None if text is None else _finite(float(text)) for text in texts]
    convert = next((convert for is_kind, convert in _BY_VALUE if is_kind(kind)), None)
    values: list[Any] = array.to_pylist()
    if convert is None:
        return values
    return [None if value is None else convert(value) for value in values]


def _finite(value: float) -> float | str:
    """JSON has no words for the others."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


_BY_VALUE: tuple[tuple[Callable[[Any], bool], Callable[[Any], Any]], ...] = (
    (pa.types.is_float64, _finite),
    (pa.types.is_decimal, lambda value: format(value, "f")),
    (pa.types.is_binary, lambda value: base64.b64encode(value).decode()),
)


def _column(batch: pa.RecordBatch, name: str) -> list[Any]:
    if name not in batch.schema.names:
        return [None] * batch.num_rows
    column = batch.column(name)
    # Our own positions are numbers; only the source's 64-bit values are texts.
    return column.to_pylist() if name in ("_lsn", "_seq") else json_values(column)


def _old(batch: pa.RecordBatch) -> list[Object | None]:
    """What an update says of the row as it was: its key, or all of it if the table has none."""
    old = batch.column("_old")
    fields = {field.name: json_values(old.field(n)) for n, field in enumerate(old.type)}
    return [
        {name: values[number] for name, values in fields.items()} if there else None
        for number, there in enumerate(old.is_valid().to_pylist())
    ]


def _objects(batch: pa.RecordBatch, names: tuple[str, ...]) -> Iterator[Object]:
    columns = [json_values(batch.column(name)) for name in names]
    if not columns:
        return iter([{} for _ in range(batch.num_rows)])
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def _given(**values: Any) -> Object:
    """Without what is empty."""
    return {name: value for name, value in values.items() if value}
