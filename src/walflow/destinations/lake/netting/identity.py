"""What tells rows apart: their values, and the overflow texts of those that a type cannot hold.

The same as walflow.spark.row_identity says it for Spark.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from walflow.destinations.lake.netting.comparable import comparable
from walflow.destinations.lake.netting.overflow import text_of
from walflow.destinations.lake.table_schema import EXACT
from walflow.model import TableSchema
from walflow.spark.row_identity import may_be_inexact

__all__ = ["IdentityPart", "identity_of_rows"]


@dataclass(frozen=True, slots=True)
class IdentityPart:
    """One of the values that tell rows apart."""

    column: str
    """Of the table; that of the overflow texts is one, too."""
    text_of: str | None = None
    """Of overflow texts, only that of this column."""
    signed_zeros: bool = False
    """Whether -0 is not 0: as a key they are the same, in a whole row they are not."""

    def of(self, values: pa.Array) -> pa.Array:
        """The column's values in a form that can be compared."""
        if self.text_of is not None:
            return text_of(values, self.text_of)
        return comparable(values, signed_zeros=self.signed_zeros)


def identity_of_rows(schema: TableSchema, *, overflow: bool) -> tuple[IdentityPart, ...]:
    """Of a table with a key it is the key, of one without a key the whole row. ``overflow``:
    whether some row may have overflow texts."""
    if not schema.key:
        whole = (IdentityPart(name, signed_zeros=True) for name in schema.column_names)
        return (*whole, IdentityPart(EXACT)) if overflow else tuple(whole)
    inexact = [column.name for column in schema.key_columns if may_be_inexact(column)]
    texts = (IdentityPart(EXACT, text_of=name) for name in inexact if overflow)
    return (*(IdentityPart(column.name) for column in schema.key_columns), *texts)
