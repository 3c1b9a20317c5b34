"""Rounds and compactions that Arrow writes in this process; Iceberg itself only commits them.

The way of a round: net changes in columns (lake.columnar), the places of the rows with their keys
(``keys``), new rows as Parquet and former ones as deletion vectors (``writing``, ``vectors``), one
commit of both (``table``). ``tables`` remembers what it has left, so that nothing is asked twice.
"""

from walflow.destinations.iceberg.columnar.schemas import NotInColumns
from walflow.destinations.iceberg.columnar.table import IcebergTable, newest_position
from walflow.destinations.iceberg.columnar.tables import ColumnarTables

__all__ = ["ColumnarTables", "IcebergTable", "NotInColumns", "newest_position"]
