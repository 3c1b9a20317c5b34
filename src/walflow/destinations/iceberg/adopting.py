"""Files that become part of a table as they are, in one commit with the position.

Iceberg's own API does this in a tenth of a second; its SQL procedure, which is the way where there
is no bridge to the JVM (Spark Connect), takes a Spark job and several commits for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from walflow.destinations.iceberg.tables import EXACT, table_identifier
from walflow.model import TableName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["append_files", "table_location"]


def table_location(spark: SparkSession, name: TableName) -> str:
    """Where the table is stored, as a path or URI."""
    table = _loaded(spark, name)
    if table is not None:
        return str(table.location())
    described = spark.sql(f"DESCRIBE TABLE EXTENDED {table_identifier(name)}")
    return str(described.where("col_name = 'Location'").collect()[-1]["data_type"])


def _loaded(spark: SparkSession, name: TableName) -> Any:
    """The table as an object of Iceberg's; None: there is no bridge."""
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:
        return None
    util = jvm.org.apache.iceberg.spark.Spark3Util
    return util.loadIcebergTable(spark._jsparkSession, table_identifier(name))


def append_files(
    spark: SparkSession, name: TableName, folder: Path, summary: Mapping[str, str]
) -> bool:
    """Add all Parquet files of the folder, with this snapshot summary; False: there is no bridge.

    The files have the table's column names, but for the exact texts, which they call ``_exact``.
    """
    table = _loaded(spark, name)
    if table is None:
        return False
    jvm: Any = spark._jvm
    iceberg = jvm.org.apache.iceberg
    mapping = _name_mapping(iceberg.mapping, table.schema())
    files = iceberg.data.TableMigrationUtil.listPartition(
        jvm.java.util.HashMap(),
        str(folder),
        "parquet",
        table.spec(),
        spark._jsparkSession.sessionState().newHadoopConf(),
        iceberg.MetricsConfig.forTable(table),
        iceberg.mapping.NameMappingParser.fromJson(mapping),
    )
    transaction = table.newTransaction()
    named = iceberg.TableProperties.DEFAULT_NAME_MAPPING
    transaction.updateProperties().set(named, mapping).commit()
    append = transaction.newAppend()
    for file in files:
        append.appendFile(file)
    for key, value in summary.items():
        append.set(key, value)
    append.commit()
    transaction.commitTransaction()
    return True


def _name_mapping(mappings: Any, schema: Any) -> str:
    """By which names the files' columns are found, as JSON: the files have no field ids."""
    fields = json.loads(mappings.NameMappingParser.toJson(mappings.MappingUtil.create(schema)))
    for field in fields:
        if field["names"] == [EXACT]:
            field["names"].append("_exact")
    return json.dumps(fields)
