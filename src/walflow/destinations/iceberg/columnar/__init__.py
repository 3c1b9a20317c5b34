"""Rounds that Arrow writes in this process: data and deletion vectors here, the commit by Iceberg.

The way of a round: net changes in columns (lake.columnar), the places of the rows with their keys
(``keys``), new rows as Parquet (``rows``) and former ones as deletion vectors (``vectors``), one
commit of both (``merging``).
"""

from walflow.destinations.iceberg.columnar.merging import ColumnarTables

__all__ = ["ColumnarTables"]
