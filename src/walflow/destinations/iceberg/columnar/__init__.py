"""Batches and compactions that Arrow writes in this process; Iceberg itself only commits them.

The steps of a batch: net changes in columns (lake.columnar), the places of the rows with their keys
(``keys``), new rows as Parquet and former ones as deletion vectors (``writing``, ``vectors``), one
commit of both (``table``). ``tables`` remembers what it has left, so that nothing is asked twice.
"""

from walflow.destinations.iceberg.columnar.commits import IcebergTable, newest_position
from walflow.destinations.iceberg.columnar.engine import ColumnarTables
from walflow.destinations.iceberg.columnar.writing import copied_rows
from walflow.destinations.lake.fallback import FallBackToSpark

__all__ = ["ColumnarTables", "FallBackToSpark", "IcebergTable", "copied_rows", "newest_position"]
