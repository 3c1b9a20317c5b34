from __future__ import annotations

import socket
import urllib.request
from contextlib import AbstractContextManager

import pytest
from prometheus_client import generate_latest

from walflow.errors import ConfigError, SlotInUse
from walflow.model import Phase, TableName
from walflow.observe.metrics import Metrics, serve_metrics

ORDERS = TableName("shop", "orders")
NAMES = [
    "events_received_total",
    "events_processed_total",
    "bytes_processed_total",
    "replication_messages_total",
    "transactions_total",
    "transaction_size",
    "batch_items_send_duration_seconds",
    "batches_written_total",
    "apply_loop_received_lag_bytes",
    "apply_loop_flush_lag_bytes",
    "apply_loop_end_to_end_lag_bytes",
    "apply_loop_end_to_end_lag_seconds",
    "table_copy_duration_seconds",
    "table_copy_rows_total",
    "table_copy_ranges_total",
    "status_updates_total",
    "slot_invalidations_total",
    "ddl_schema_changes_total",
    "worker_errors_total",
    "memory_backpressure",
    "tables_total",
    "tables_failing",
    "pipeline_active",
    "pipeline_starts_total",
    "pipeline_stops_total",
    "pipeline_errors_total",
]


def test_the_known_names_are_there() -> None:
    text = generate_latest(Metrics().registry).decode()
    declared = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert {f"etl_{name}" for name in NAMES} == declared


def test_counts_by_pipeline_and_table() -> None:
    metrics = Metrics()
    shop, other = metrics.pipeline("shop"), metrics.pipeline("other")
    shop.events_received(ORDERS).inc(5)
    shop.events_received(TableName("archive", "orders")).inc(1)
    other.events_received(ORDERS).inc(7)
    metrics.pipeline("shop").events_received(ORDERS).inc(1)
    shop.transaction_size.observe(12)

    def value(pipeline: str, table: str) -> float | None:
        labels = {"pipeline": pipeline, "table": table}
        return metrics.registry.get_sample_value("etl_events_received_total", labels)

    assert value("shop", "shop.orders") == 6
    assert value("shop", "archive.orders") == 1
    assert value("other", "shop.orders") == 7
    small = {"le": "100.0", "pipeline": "shop"}
    assert metrics.registry.get_sample_value("etl_transaction_size_bucket", small) == 1


def test_registries_do_not_share() -> None:
    one, two = Metrics(), Metrics()
    one.pipeline("p").transactions.inc()
    sample = two.registry.get_sample_value("etl_transactions_total", {"pipeline": "p"})
    assert sample is None


def test_phases_that_are_empty_show_zero() -> None:
    metrics = Metrics()
    pipeline = metrics.pipeline("p")
    pipeline.set_phases({ORDERS: Phase.DATA_SYNC})
    pipeline.set_phases({ORDERS: Phase.READY, TableName("shop", "items"): Phase.READY})
    found = {
        phase: metrics.registry.get_sample_value(
            "etl_tables_total", {"pipeline": "p", "phase": phase.value}
        )
        for phase in Phase
    }
    assert found == {**dict.fromkeys(Phase, 0), Phase.READY: 2}


def test_life_of_a_pipeline() -> None:
    metrics = Metrics()
    pipeline = metrics.pipeline("p")

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"etl_{name}", {"pipeline": "p", **labels})

    assert value("pipeline_active") == 0
    pipeline.started()
    assert value("pipeline_active") == 1
    pipeline.worker_failed("apply", ValueError())
    pipeline.failed(SlotInUse("by 42"))
    pipeline.started()
    pipeline.stopped()
    assert value("pipeline_active") == 0
    assert value("pipeline_starts_total") == 2
    assert value("pipeline_stops_total") == 1
    assert value("pipeline_errors_total", error="SlotInUse") == 1
    assert value("worker_errors_total", worker="apply", error="ValueError") == 1


def test_batches_by_engine_and_why_it_was_spark() -> None:
    metrics = Metrics()
    pipeline = metrics.pipeline("p")
    for _ in range(2):
        pipeline.batch_written("columnar", "")
    pipeline.batch_written("spark", "size")
    labels = {"pipeline": "p", "engine": "spark", "fallback": "size"}
    assert metrics.registry.get_sample_value("etl_batches_written_total", labels) == 1
    assert pipeline.batches_written() == {"columnar": 2, "spark (size)": 1}


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "[::1]:0"])
def test_serves_while_the_block_runs(address: str) -> None:
    if address.startswith("[") and not has_ipv6_loopback():
        pytest.skip("this machine has no IPv6 loopback (::1): enable it to run this case")
    metrics = Metrics()
    metrics.pipeline("p").started()
    with serve_metrics(address, metrics.registry) as url:
        assert 'etl_pipeline_active{pipeline="p"} 1.0' in fetch(url)
    with pytest.raises(OSError, match="refused"):
        fetch(url)
    port = url.rpartition(":")[2].partition("/")[0]
    with serve_metrics(f"{address.rpartition(':')[0]}:{port}", metrics.registry):
        pass


def test_a_port_in_use_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match="in use") as caught, _serving(address):
            pass
    assert "metrics_address" in caught.value.hint


@pytest.mark.parametrize("address", ["nonsense", "192.0.2.1:9000"])
def test_addresses_that_cannot_be_served(address: str) -> None:
    with pytest.raises(ConfigError, match=r"metrics_address|cannot be served"), _serving(address):
        pass


def _serving(address: str) -> AbstractContextManager[str]:
    return serve_metrics(address, Metrics().registry)


def has_ipv6_loopback() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False
