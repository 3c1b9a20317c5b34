"""What a table says of itself, asked by SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from walflow.destinations.lake.owner import Owner, is_owned
from walflow.spark.causes import cause_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["is_table_owned", "properties_of"]

_logger = structlog.get_logger(__name__)


def properties_of(spark: SparkSession, identifier: str) -> dict[str, str]:
    rows = spark.sql(f"SHOW TBLPROPERTIES {identifier}").collect()
    return {row["key"]: row["value"] for row in rows}


def is_table_owned(spark: SparkSession, identifier: str, owner: Owner) -> bool:
    """Also False if it is not known."""
    try:
        properties = properties_of(spark, identifier)
    except Exception as error:
        # Somebody's table that is damaged must not stand in the way.
        _logger.warning(
            "it is not known who owns a table",
            table=identifier,
            error=cause_of(error).message,
        )
        return False
    return is_owned(owner, properties)
