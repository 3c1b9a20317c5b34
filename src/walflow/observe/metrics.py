"""Prometheus metrics under the ``etl_`` names that users of such systems know, and ``/metrics``.

``Metrics`` owns a registry of its own: nothing is global, so tests and several pipelines in one
process do not collide. Each pipeline counts through the ``PipelineMetrics`` that
``Metrics.pipeline(name)`` gives it. All calls may come from several threads.
"""

from __future__ import annotations

import errno
import socket
import threading
from collections import Counter as Counts
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from walflow.config import host_and_port
from walflow.errors import ConfigError, WalflowError
from walflow.model import Phase, TableName

__all__ = ["Metrics", "PipelineMetrics", "serve_metrics"]

_TRANSACTION_CHANGES = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)
_SEND_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_COPY_SECONDS = (0.5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600)


class Metrics:
    """All metric families of a process, in one registry."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"etl_{name}", about, ("pipeline", *labels), registry=self.registry)

        def gauge(name: str, about: str, *labels: str) -> Gauge:
            return Gauge(f"etl_{name}", about, ("pipeline", *labels), registry=self.registry)

        def histogram(name: str, about: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            names = ("pipeline", *labels)
            return Histogram(f"etl_{name}", about, names, registry=self.registry, buckets=buckets)

        self.events_received = counter(
            "events_received_total", "Row changes read from the write-ahead log.", "table"
        )
        self.events_processed = counter(
            "events_processed_total", "Row changes applied to the destination.", "table"
        )
        self.bytes_processed = counter(
            "bytes_processed_total", "Bytes of the replication stream that were decoded."
        )
        self.replication_messages = counter(
            "replication_messages_total", "Messages of the replication stream that were decoded."
        )
        self.transactions = counter(
            "transactions_total", "Committed transactions read from the write-ahead log."
        )
        self.transaction_size = histogram(
            "transaction_size",
            "Row changes of a transaction: means over small groups.",
            _TRANSACTION_CHANGES,
        )
        self.batch_send_duration = histogram(
            "batch_items_send_duration_seconds",
            "How long the destination took to write one batch of a table's changes.",
            _SEND_SECONDS,
            "table",
        )
        self.batches_written = counter(
            "batches_written_total",
            "Batches by what wrote them, and why it was not the quicker engine.",
            "engine",
            "fallback",
        )
        self.received_lag_bytes = gauge(
            "apply_loop_received_lag_bytes", "Write-ahead log that has not been received yet."
        )
        self.flush_lag_bytes = gauge(
            "apply_loop_flush_lag_bytes", "Write-ahead log that is not yet durable in our log."
        )
        self.end_to_end_lag_bytes = gauge(
            "apply_loop_end_to_end_lag_bytes", "Write-ahead log that has not been applied yet."
        )
        self.end_to_end_lag_seconds = gauge(
            "apply_loop_end_to_end_lag_seconds", "Age of the oldest commit not yet applied."
        )
        self.table_copy_duration = histogram(
            "table_copy_duration_seconds",
            "How long the copy of a table's existing rows took.",
            _COPY_SECONDS,
            "table",
        )
        self.table_copy_rows = counter(
            "table_copy_rows_total", "Rows read by the copy of existing rows.", "table"
        )
        self.table_copy_ranges = counter(
            "table_copy_ranges_total", "Ranges of pages read by the copy of existing rows.", "table"
        )
        self.schema_changes = counter(
            "ddl_schema_changes_total",
            "Changes of a table's schema that the destination's table has followed.",
            "table",
        )
        self.status_updates = counter(
            "status_updates_total", "Positions reported to the source server."
        )
        self.slot_invalidations = counter(
            "slot_invalidations_total", "Times that the slot was found lost or invalidated."
        )
        self.worker_errors = counter(
            "worker_errors_total", "Errors of a pipeline's workers.", "worker", "error"
        )
        self.memory_backpressure = gauge(
            "memory_backpressure", "1 while receiving pauses because the log is at its limit."
        )
        self.tables = gauge("tables_total", "Tables in each phase.", "phase")
        self.tables_failing = gauge(
            "tables_failing",
            "Tables that failed and have not succeeded since: set aside, or tried again.",
        )
        self.pipeline_active = gauge("pipeline_active", "1 while the pipeline runs.")
        self.pipeline_starts = counter("pipeline_starts_total", "Starts of the pipeline.")
        self.pipeline_stops = counter("pipeline_stops_total", "Orderly ends of the pipeline.")
        self.pipeline_errors = counter(
            "pipeline_errors_total", "Ends of the pipeline by an error.", "error"
        )

    def pipeline(self, name: str) -> PipelineMetrics:
        """The metrics of one pipeline. The same name gives the same series."""
        return PipelineMetrics(self, name)


class PipelineMetrics:
    """One pipeline's series: attributes for those without further labels, methods for the
    others."""

    def __init__(self, metrics: Metrics, pipeline: str) -> None:
        self._metrics = metrics
        self._pipeline = pipeline
        # Binding a label makes its series, so that a quiet pipeline shows zeros, not gaps.
        self.bytes_processed = metrics.bytes_processed.labels(pipeline)
        self.replication_messages = metrics.replication_messages.labels(pipeline)
        self.transactions = metrics.transactions.labels(pipeline)
        self.transaction_size = metrics.transaction_size.labels(pipeline)
        self.received_lag_bytes = metrics.received_lag_bytes.labels(pipeline)
        self.flush_lag_bytes = metrics.flush_lag_bytes.labels(pipeline)
        self.end_to_end_lag_bytes = metrics.end_to_end_lag_bytes.labels(pipeline)
        self.end_to_end_lag_seconds = metrics.end_to_end_lag_seconds.labels(pipeline)
        self.status_updates = metrics.status_updates.labels(pipeline)
        self.memory_backpressure = metrics.memory_backpressure.labels(pipeline)
        self.slot_invalidations = metrics.slot_invalidations.labels(pipeline)
        self.tables_failing = metrics.tables_failing.labels(pipeline)
        self._active = metrics.pipeline_active.labels(pipeline)
        self._written: Counts[tuple[str, str]] = Counts()
        self._counting = threading.Lock()
        self._starts = metrics.pipeline_starts.labels(pipeline)
        self._stops = metrics.pipeline_stops.labels(pipeline)

    def events_received(self, table: TableName) -> Counter:
        return self._metrics.events_received.labels(self._pipeline, str(table))

    def events_processed(self, table: TableName) -> Counter:
        return self._metrics.events_processed.labels(self._pipeline, str(table))

    def batch_send_duration(self, table: TableName) -> Histogram:
        return self._metrics.batch_send_duration.labels(self._pipeline, str(table))

    def batch_written(self, engine: str, fallback: str) -> None:
        """``fallback``: why the faster engine did not write it. Empty if it did."""
        self._metrics.batches_written.labels(self._pipeline, engine, fallback).inc()
        with self._counting:
            self._written[engine, fallback] += 1

    def batches_written(self) -> dict[str, int]:
        """How many batches since the start of the process, in words: ``spark (size)``."""
        with self._counting:
            written = dict(self._written)
        return {
            f"{engine} ({fallback})" if fallback else engine: count
            for (engine, fallback), count in sorted(written.items())
        }

    def table_copy_duration(self, table: TableName) -> Histogram:
        return self._metrics.table_copy_duration.labels(self._pipeline, str(table))

    def table_copy_rows(self, table: TableName) -> Counter:
        return self._metrics.table_copy_rows.labels(self._pipeline, str(table))

    def table_copy_ranges(self, table: TableName) -> Counter:
        return self._metrics.table_copy_ranges.labels(self._pipeline, str(table))

    def schema_changes(self, table: TableName) -> Counter:
        return self._metrics.schema_changes.labels(self._pipeline, str(table))

    def set_phases(self, tables: Mapping[TableName, Phase]) -> None:
        """Count the tables by phase. Phases without a table show zero."""
        counts = dict.fromkeys(Phase, 0)
        for phase in tables.values():
            counts[phase] += 1
        for phase, count in counts.items():
            self._metrics.tables.labels(self._pipeline, phase.value).set(count)

    def started(self) -> None:
        self._starts.inc()
        self._active.set(1)

    def stopped(self) -> None:
        """The pipeline ended because it was asked to, or was done."""
        self._stops.inc()
        self._active.set(0)

    def failed(self, error: BaseException) -> None:
        """The pipeline ended with this error."""
        self._metrics.pipeline_errors.labels(self._pipeline, _error_name(error)).inc()
        self._active.set(0)

    def worker_failed(self, worker: str, error: BaseException) -> None:
        """A worker (``receive``, ``copy``, ``apply``) met this error. It may try again."""
        self._metrics.worker_errors.labels(self._pipeline, worker, _error_name(error)).inc()


def _error_name(error: BaseException) -> str:
    return error.code if isinstance(error, WalflowError) else type(error).__name__


_HINT = "Choose another address (metrics_address, WALFLOW_METRICS_ADDRESS), like 127.0.0.1:9000."


@contextmanager
def serve_metrics(address: str, registry: CollectorRegistry) -> Iterator[str]:
    """Serve the registry on host:port while the block runs; gives the URL.

    Port 0 takes any free one. ``[::]:9000`` and ``:9000`` listen on all interfaces.
    """
    try:
        host, port = host_and_port(address)
    except ValueError as error:
        raise ConfigError(f"metrics_address {address!r} {error}.", hint=_HINT) from None
    host = host or ("::" if socket.has_dualstack_ipv6() else "0.0.0.0")  # noqa: S104  # asked for
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise _cannot_listen(address, error) from error
    try:
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _cannot_listen(address: str, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            f"Metrics cannot be served on {address}: the port is in use.",
            hint=f"Another pipeline or exporter may have it (ss -ltnp shows which). {_HINT}",
        )
    return ConfigError(
        f"Metrics cannot be served on {address}: {error.strerror or error}.", hint=_HINT
    )
