"""The destination: whether it can be reached and written, and what it does with changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from walflow.checks.facts import Facts
from walflow.checks.findings import Area, Finding, attempted, error, ok, skipped
from walflow.checks.scratch import removed_if_made
from walflow.destinations import (
    check_folder,
    check_named,
    open_destination,
    open_without_spark,
    warehouse_of,
)
from walflow.destinations.base import Checked, Destination, Positioned, Shutdown, Startup
from walflow.destinations.lake import LakeDestination, plan_of
from walflow.destinations.lake.forms import stored_form
from walflow.errors import DestinationError
from walflow.mapping import TableMapping
from walflow.redaction import redacted

__all__ = ["STARTING", "check_destination"]

STARTING = "starting Spark"
"""What is told while nothing has been made yet."""

_AREA = Area.DESTINATION


def check_destination(facts: Facts) -> Iterator[Finding]:
    yield from attempted(_AREA, "destination", _destination(facts))


def _destination(facts: Facts) -> Iterator[Finding]:
    own = open_without_spark(facts.settings)
    if own is None:
        yield from _lake(facts)
        return
    yield from _delivery(own)
    try:
        if isinstance(own, Startup):
            own.startup()
        yield from _writing(own, redacted(facts.settings.destination.uri))
    finally:
        if isinstance(own, Shutdown):
            own.shutdown()


def _lake(facts: Facts) -> Iterator[Finding]:
    check_named(facts.settings)
    folder = warehouse_of(facts.settings.destination.uri)
    problem = next(attempted(_AREA, "folder", _folder(folder)), None)
    if problem is not None:
        yield problem
    yield from _forms(facts)
    yield from _delivery(LakeDestination)
    if problem is not None:
        return
    if facts.quick:
        yield skipped(_AREA, "writing", "whether tables can be made and written (--quick)")
    elif not facts.spark_can_start:
        yield skipped(_AREA, "writing", "whether tables can be made and written: see Spark")
    elif not facts.stopped():
        with removed_if_made(folder):
            yield from _writing_on_spark(facts)


def _folder(folder: Path) -> Iterator[Finding]:
    check_folder(folder)
    yield from ()


def _forms(facts: Facts) -> Iterator[Finding]:
    """Whether each table can be one of a lake, in the mode that is wanted."""
    settings = facts.settings
    mapping = TableMapping(settings.mapping)
    for table in facts.tables:
        schema = replace(table.schema, name=mapping.destination(table.name))
        plan = plan_of(settings.apply, str(table.name))
        try:
            stored_form(schema, plan, exact=False)
        except DestinationError as refusal:
            yield error(_AREA, "form", refusal)


def _writing_on_spark(facts: Facts) -> Iterator[Finding]:
    facts.doing(STARTING)
    with closing(
        open_destination(
            facts.settings,
            facts.source_id,
            spark=facts.spark,
            warm_up=False,
            debug=facts.debug,
        )
    ) as opened:
        yield ok(_AREA, "session", f"Spark {opened.spark.version} starts")
        facts.doing("making a scratch table")
        yield from _writing(opened.destination, redacted(facts.settings.destination.uri))
        facts.doing("ending Spark")


def _writing(destination: Destination, shown: str) -> Iterator[Finding]:
    if not isinstance(destination, Checked):
        yield skipped(
            _AREA,
            "writing",
            f"whether tables can be written: {destination.name} has no check_writable",
        )
        return
    destination.check_writable()
    yield ok(_AREA, "writing", f"{shown} can be written: a scratch table was made and removed")


def _delivery(destination: Destination | type[Destination]) -> Iterator[Finding]:
    if isinstance(destination, type):
        positioned = issubclass(destination, Positioned)
    else:
        positioned = isinstance(destination, Positioned)
    if positioned:
        yield ok(_AREA, "delivery", "delivery is effectively once: rows and position in one commit")
        return
    yield ok(
        _AREA,
        "delivery",
        "delivery is at least once: after a crash, the last changes come again (the destination "
        "keeps no position with its rows)",
    )
