"""What a batch by Spark costs: few jobs, and no code that is generated anew for each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from walflow.bench.bare_merge import counted_jobs
from walflow.bench.hard_batches import KINDS, HardTable
from walflow.destinations.base import TableCopy
from walflow.destinations.iceberg import IcebergFormat
from walflow.destinations.lake import LakeDestination, Owner
from walflow.model import Lsn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROWS, CHANGES = 500, 40


# As users have it: the tests' session compiles nothing.
GENERATING = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "CODEGEN_ONLY",
}


def compiled(spark: SparkSession) -> int:
    """How many classes Spark has generated so far."""
    jvm: Any = spark.sparkContext._jvm
    metrics = jvm.org.apache.spark.metrics.source.CodegenMetrics
    count: int = metrics.METRIC_COMPILATION_TIME().getCount()
    return count


@pytest.mark.parametrize("kind", KINDS)
def test_a_hard_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(IcebergFormat, "columnar", lambda *_: None)  # all is left to Spark
    format = IcebergFormat(str(tmp_path / "lake"))
    format.session_conf = {**format.session_conf, **GENERATING}
    destination = LakeDestination(spark, format, Owner("bench", "bench"))
    table = HardTable(kind, ROWS, tmp_path / "log")
    files = tuple(table.copy_files())
    destination.copy(TableCopy(table.schema, files, Lsn(table.position), False, spark))

    def batch() -> None:
        destination.apply(table.batch(spark, CHANGES))

    for _ in range(3):
        batch()
    before = compiled(spark)
    assert before > 0
    for _ in range(3):
        assert counted_jobs(spark, batch).jobs <= 2
    assert compiled(spark) == before
    destination.shutdown()
