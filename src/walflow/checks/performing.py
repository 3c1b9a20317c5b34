"""All checks, one area after the other."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack

from walflow.checks.destination import check_destination
from walflow.checks.findings import Facts, Finding
from walflow.checks.log import check_log
from walflow.checks.source import check_source
from walflow.checks.spark import check_spark
from walflow.checks.store import check_store
from walflow.checks.tables import check_tables

__all__ = ["perform"]


def perform(facts: Facts) -> Generator[Finding, None, None]:
    """Yield findings as they come. What the checks create is removed at the end; to stop earlier,
    close the generator."""
    with ExitStack() as stack:
        checks = (
            check_source(facts, stack),
            check_tables(facts),
            check_store(facts),
            check_log(facts),
            check_spark(facts),
            check_destination(facts),
        )
        for check in checks:
            if facts.stopped():
                return
            yield from check
