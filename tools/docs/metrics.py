"""The page of all metrics, from the registry."""

from __future__ import annotations

from prometheus_client import Histogram
from prometheus_client.metrics import MetricWrapperBase

from tools.docs.markdown import code, table
from walflow.observe.metrics import Metrics

__all__ = ["metrics_page"]

_INTRODUCTION = """\
# Metrics

`walflow run --metrics 127.0.0.1:9000` (or `metrics_address`) serves these at `/metrics`, as
Prometheus reads them. All have the label `pipeline`. [Monitor](../how-to/monitor.md) says which of
them to watch.
"""


def metrics_page() -> str:
    lines = [_INTRODUCTION]
    lines += table(["Metric", "Kind", "Labels", "What it tells"], map(_row, _families()))
    lines += ["## Buckets", ""]
    lines += table(
        ["Histogram", "Buckets, up to"],
        (
            [
                code(_name(family)),
                ", ".join(f"{bound:,}".removesuffix(".0") for bound in _bounds(family)),
            ]
            for family in _families()
            if isinstance(family, Histogram)
        ),
    )
    return "\n".join(lines)


def _families() -> list[MetricWrapperBase]:
    found = vars(Metrics()).values()
    return sorted((one for one in found if isinstance(one, MetricWrapperBase)), key=_name)


def _name(family: MetricWrapperBase) -> str:
    """The scraped name: counters end in _total."""
    (described,) = family.describe()
    return described.name + ("_total" if described.type == "counter" else "")


def _row(family: MetricWrapperBase) -> list[str]:
    (described,) = family.describe()
    labels = [label for label in family._labelnames if label != "pipeline"]
    return [
        code(_name(family)),
        described.type,
        ", ".join(map(code, labels)),
        described.documentation,
    ]


def _bounds(family: Histogram) -> list[float]:
    return [bound for bound in family._kwargs["buckets"] if bound != float("inf")]
