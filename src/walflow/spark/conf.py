"""What Spark is told: of every session, of the driver, and of executors elsewhere."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from walflow.config import SparkSettings
from walflow.spark.java import Java

__all__ = ["SESSION_CONF", "driver_conf", "is_local", "master_addresses", "shuffle_partitions"]

_JAVA_TEMPORARY = "/tmp"  # noqa: S108 - Java's own choice, whatever the environment says
_CLUSTER_PARTITIONS = 8

SESSION_CONF: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    # Postgres columns may differ by case alone.
    "spark.sql.caseSensitive": "true",
    # Proleptic Gregorian dates throughout, as Postgres and Arrow have them.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A batch lists many small files; a Spark job for the listing alone costs more than it saves.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    # Bloom filters on the scan of the table that is merged into: half the time of a MERGE. They
    # are made only for joins that are not broadcast.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.optimizer.runtime.bloomFilter.enabled": "true",
    "spark.sql.optimizer.runtime.bloomFilter.applicationSideScanSizeThreshold": "0",
    "spark.sql.optimizer.runtime.bloomFilter.creationSideThreshold": "100MB",
    # Most keys change once in a batch: looking for the last change of each before the shuffle, too,
    # is a sort for nothing.
    "spark.sql.optimizer.windowGroupLimitThreshold": "-1",
    # Net changes are kept as a MERGE wants them: it shuffles and sorts what it finds otherwise.
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "false",
    # Each shuffle would be a job of its own, after which the rest is planned anew: that costs more
    # than small batches have to gain.
    "spark.sql.adaptive.enabled": "false",
    # The values of an IN are a part of the code that Spark generates, unless they are a set.
    "spark.sql.optimizer.inSetConversionThreshold": "0",
    "spark.sql.optimizer.inSetSwitchThreshold": "0",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
}
"""What every session must have; a session of a Spark Connect server can be told it too."""

_DRIVER_CONF: Mapping[str, str] = {
    "spark.app.name": "walflow",
    # Destinations without Spark get rows through the driver, in pieces; a job has many of them.
    "spark.driver.maxResultSize": "0",
    # A batch of one table needs up to 40 classes. With Spark's room for 100, five tables throw out
    # each other's: they would be compiled for every batch, by Spark and then by Java.
    "spark.sql.codegen.cache.maxEntries": "5000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # What Spark remembers of finished work for pages that nobody opens.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "10",
    # Tables that catch up or are copied leave those that are followed their part: jobs.in_pool.
    "spark.scheduler.mode": "FAIR",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.worker.reuse": "true",
    # An executor that dies in Python should say where.
    "spark.python.worker.faulthandler.enabled": "true",
}

_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}

_LOG4J = """\
rootLogger.level = {level}
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{ISO8601}} %p %c{{1}}: %m%n%ex
"""


def driver_conf(
    settings: SparkSettings,
    java: Java,
    jars: Iterable[Path],
    extra: Mapping[str, str],
    folder: Path,
    debug: bool,
    more_options: Iterable[str] = (),
) -> dict[str, str]:
    """All settings of a session whose driver is a JVM of ours, which may use the folder.
    ``more_options``: of that JVM."""
    log4j = folder / "log4j2.properties"
    log4j.write_text(_LOG4J.format(level="warn" if debug else "error"))
    everywhere = ["-Duser.timezone=UTC", "-Dfile.encoding=UTF-8"]
    options = [
        f"-Dlog4j2.configurationFile={log4j.as_uri()}",
        *everywhere,
        # On two cores Java would choose the serial collector.
        "-XX:+UseG1GC",
        # What a busy time has taken for the heap goes back to the system when it is over. By
        # itself Java looks only when it collects, and then keeps two thirds free.
        "-XX:G1PeriodicGCInterval=300000",
        "-XX:MinHeapFreeRatio=20",
        "-XX:MaxHeapFreeRatio=40",
        "-XX:+ExitOnOutOfMemoryError",
        *more_options,
    ]
    if not os.access(_JAVA_TEMPORARY, os.W_OK):
        # Python has found a folder that this user may write. Not always, because Spark puts
        # sockets there, whose paths must be short.
        options.append(f'"-Djava.io.tmpdir={folder}"')
    if java.version >= 22:
        # Netty and Hadoop load native code, which newer Javas warn about.
        options.append("--enable-native-access=ALL-UNNAMED")
    if java.version >= 18:
        # Hadoop asks who the user is in a way that newer Javas refuse without it.
        options.append("-Djava.security.manager=allow")
    conf = {
        **_DRIVER_CONF,
        **SESSION_CONF,
        "spark.master": settings.master,
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": " ".join(options),
        "spark.sql.shuffle.partitions": str(shuffle_partitions(settings.master)),
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    if _is_here(settings.master):
        conf |= _LOOPBACK
    if is_local(settings.master):
        # Each sort begins with a page, which is filled with zeros. Spark's own choice is 32 MB.
        conf["spark.buffer.pageSize"] = "2m"
    if not is_local(settings.master):
        conf["spark.executor.extraJavaOptions"] = " ".join(everywhere)
    conf |= extra
    # What the user adds to a JVM's options must not cost us ours.
    user = dict(settings.conf)
    for name in ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"):
        if name in conf and (more := user.pop(name, None)):
            conf[name] += f" {more}"
    conf |= user
    if files := [str(jar) for jar in jars]:
        conf["spark.jars"] = ",".join([*files, *filter(None, [conf.get("spark.jars", "")])])
    return conf


def is_local(master: str) -> bool:
    """Whether the driver's JVM is the only executor."""
    return master.startswith("local") and not master.startswith("local-cluster")


def master_addresses(master: str) -> list[tuple[str, int]]:
    """Host and port of each master of a standalone cluster; empty for all other kinds."""
    scheme, _, rest = master.partition("://")
    if scheme != "spark":
        return []
    parts = [urlsplit(f"spark://{address}") for address in rest.split(",")]
    return [(part.hostname, part.port or 7077) for part in parts if part.hostname]


def _is_here(master: str) -> bool:
    """Whether no other machine takes part. If one does, Spark finds out the driver's address."""
    addresses = master_addresses(master)
    if not addresses:
        return master.startswith("local")
    return all(_is_loopback(host) for host, _ in addresses)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def shuffle_partitions(master: str | None) -> int:
    """As many as local cores, but few: batches are small, and each partition costs a task.

    ``None`` is a Spark Connect server.
    """
    if master is None or not is_local(master):
        return _CLUSTER_PARTITIONS
    return max(2, min(_CLUSTER_PARTITIONS, os.cpu_count() or 2))
