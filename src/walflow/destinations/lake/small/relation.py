"""Rows that go from Arrow to Spark, and from a table of Spark's to Arrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from walflow.arrow_types import arrow_type
from walflow.destinations.lake.batch import Batch
from walflow.destinations.lake.fallback import FallBackToSpark, Reason
from walflow.destinations.lake.netting.comparable import numbered
from walflow.destinations.lake.netting.identity import IdentityPart
from walflow.destinations.lake.netting.net_changes import Ints
from walflow.destinations.lake.table_schema import EXACT, LakeTableSchema
from walflow.spark.changes import EXACT_TYPE
from walflow.spark.names import TARGET, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Typed", "fetched", "has_long_texts", "numbers_of", "relation", "stored_overflow"]

Typed = Mapping[str, str]
"""Spark types by the names of columns."""

_MOST_FETCHED = 20_000
_MOST_VALUE_BYTES = 1 << 14
"""Of the table's rows, and of each text in them."""


def relation(spark: SparkSession, rows: pa.Table, types: Typed) -> DataFrame:
    """The rows as a part of Spark's plan: no job, and no file, is needed to read them."""
    ddl = ", ".join(f"{quoted(name)} {type}" for name, type in types.items())
    return spark.createDataFrame(rows.select(list(types)), ddl)


def fetched(batch: Batch, values: Mapping[str, str], types: Typed, within: str) -> pa.Table:
    """Of the rows that satisfy the condition, the values (in SQL) by name. FallBackToSpark if there
    is much of it."""
    texts = [values[name] for name, type in types.items() if type in ("string", "binary")]
    short = "".join(f" AND ifnull(octet_length({t}), 0) <= {_MOST_VALUE_BYTES}" for t in texts)
    selected = ", ".join(f"{value} AS {quoted(name)}" for name, value in values.items())
    found = batch.spark.sql(
        f"SELECT {selected} FROM {batch.identifier} {TARGET} WHERE {within}{short}"
        f" LIMIT {_MOST_FETCHED}"
    ).toArrow()
    if found.num_rows == _MOST_FETCHED:
        raise FallBackToSpark("much of the table would have to be read", Reason.SIZE)
    columns = [found[name].combine_chunks().cast(arrow_type(types[name])) for name in values]
    return pa.table(columns, names=list(values))


def has_long_texts(rows: pa.Table) -> bool:
    """Whether rows of the table that equal one of these might not be fetched."""
    texts = [c for c in rows.columns if pa.types.is_string(c.type) or pa.types.is_binary(c.type)]
    return any((pc.max(pc.binary_length(text)).as_py() or 0) > _MOST_VALUE_BYTES for text in texts)


def numbers_of(identity: Sequence[IdentityPart], keys: pa.Table, rows: pa.Table) -> Ints:
    """For each of the rows, which of the keys it has; -1: none of them."""
    columns = list(dict.fromkeys(part.column for part in identity))
    both = pa.concat_tables([keys.select(columns), rows.select(columns)])
    codes = numbered([part.of(both[part.column].combine_chunks()) for part in identity])
    number = np.full(len(codes), -1, dtype=np.int64)
    number[codes[: keys.num_rows]] = np.arange(keys.num_rows)
    return number[codes[keys.num_rows :]]


def stored_overflow(lake_schema: LakeTableSchema) -> str:
    """In SQL, the overflow texts of a row of TARGET."""
    return f"{TARGET}.{EXACT}" if lake_schema.overflow else f"cast(NULL AS {EXACT_TYPE})"
