"""What a session's JVM says of its memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JvmMemory", "jvm_memory", "live_heap_mb"]

_MB = 1e6


@dataclass(frozen=True, slots=True)
class JvmMemory:
    resident_mb: float
    """As the operating system counts it: all of these, and what Java's own work needs."""
    heap_mb: float
    """In use, garbage included."""
    committed_mb: float
    """What Java has taken for the heap."""
    metaspace_mb: float
    code_mb: float
    """What Java has compiled."""
    buffers_mb: float
    """Outside the heap."""
    threads: int
    classes: int
    classes_ever: int
    """Those that were unloaded included."""
    compile_seconds: float


def jvm_memory(spark: SparkSession) -> JvmMemory:
    """Of the JVM that the session's driver runs in."""
    java: Any = spark.sparkContext._jvm
    factory = java.java.lang.management.ManagementFactory
    metaspace = code = 0.0
    for pool in factory.getMemoryPoolMXBeans():
        used = pool.getUsage().getUsed() / _MB
        if pool.getName() in ("Metaspace", "Compressed Class Space"):
            metaspace = max(metaspace, used)
        elif pool.getName().startswith("Code"):
            code += used
    buffer_pools = factory.getPlatformMXBeans(
        java.java.lang.Class.forName("java.lang.management.BufferPoolMXBean")
    )
    loading = factory.getClassLoadingMXBean()
    heap = factory.getMemoryMXBean().getHeapMemoryUsage()
    process = psutil.Process(java.java.lang.ProcessHandle.current().pid())
    return JvmMemory(
        resident_mb=process.memory_info().rss / _MB,
        heap_mb=heap.getUsed() / _MB,
        committed_mb=heap.getCommitted() / _MB,
        metaspace_mb=metaspace,
        code_mb=code,
        buffers_mb=sum(pool.getMemoryUsed() for pool in buffer_pools) / _MB,
        threads=factory.getThreadMXBean().getThreadCount(),
        classes=loading.getLoadedClassCount(),
        classes_ever=loading.getTotalLoadedClassCount(),
        compile_seconds=factory.getCompilationMXBean().getTotalCompilationTime() / 1000,
    )


def live_heap_mb(spark: SparkSession) -> float:
    """What is in use once all garbage has been collected, which happens now."""
    java: Any = spark.sparkContext._jvm
    java.java.lang.System.gc()
    memory = java.java.lang.management.ManagementFactory.getMemoryMXBean()
    return float(memory.getHeapMemoryUsage().getUsed() / _MB)
