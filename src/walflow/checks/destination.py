"""The destination: whether it can be reached and written, and what it does with changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from walflow.checks.findings import Area, Facts, Finding, attempted, error, ok, skipped, warning
from walflow.checks.scratch import removed_if_made
from walflow.destinations import (
    check_folder,
    check_named,
    open_destination,
    open_without_spark,
    warehouse_of,
)
from walflow.destinations.base import Capabilities, Destination
from walflow.destinations.lake import LakeDestination
from walflow.destinations.lake.table_schema import lake_table_schema
from walflow.errors import DestinationError, DestinationForeign
from walflow.mapping import TableMapping
from walflow.pipeline.state.pipeline_notes import pipelines_on_this_machine
from walflow.redaction import redacted

__all__ = ["STARTING", "check_destination"]

STARTING = "starting Spark"
"""The step that runs before anything is created."""

_AREA = Area.DESTINATION


def check_destination(facts: Facts) -> Iterator[Finding]:
    yield from attempted(_AREA, "destination", _destination(facts))


def _destination(facts: Facts) -> Iterator[Finding]:
    own = open_without_spark(facts.settings)
    if own is None:
        yield from _lake(facts)
        return
    yield from _delivery(own.capabilities)
    try:
        own.startup()
        yield from _writing(own, redacted(facts.settings.destination.uri))
    finally:
        own.shutdown()


def _lake(facts: Facts) -> Iterator[Finding]:
    check_named(facts.settings)
    folder = warehouse_of(facts.settings.destination.uri)
    problem = next(attempted(_AREA, "folder", _folder(folder)), None)
    if problem is not None:
        yield problem
    yield from _schemas(facts)
    yield from attempted(_AREA, "neighbours", _neighbours(facts))
    yield from _delivery(LakeDestination.capabilities)
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


def _schemas(facts: Facts) -> Iterator[Finding]:
    """Whether a lake can have each table in its mode."""
    settings = facts.settings
    mapping = TableMapping(settings.mapping)
    for table in facts.tables:
        schema = replace(table.schema, name=mapping.destination(table.name))
        plan = settings.apply.plan_of(str(table.name))
        try:
            lake_table_schema(schema, plan, overflow=False)
        except DestinationError as refusal:
            yield error(_AREA, "schema", refusal)


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
        facts.doing("creating a scratch table")
        yield from _writing(opened.destination, redacted(facts.settings.destination.uri))
        facts.doing("looking for existing tables")
        yield from _owners(facts, opened.destination)
        facts.doing("ending Spark")


def _owners(facts: Facts, destination: Destination) -> Iterator[Finding]:
    """Whether existing tables belong to this pipeline."""
    assert isinstance(destination, LakeDestination)
    if facts.server is None:
        return
    mapping = TableMapping(facts.settings.mapping)
    foreign = []
    for table in facts.tables:
        if facts.stopped():
            return
        try:
            destination.check_owned(mapping.destination(table.name))
        except DestinationForeign as refusal:
            foreign.append(refusal)
    if foreign:
        first, *others = foreign
        if others:
            more = "1 more table" if len(others) == 1 else f"{len(others)} more tables"
            first.message += f" (the same holds for {more})"
        yield error(_AREA, "owner", first)
    elif facts.tables:
        yield ok(_AREA, "owner", "no table there belongs to another pipeline")


def _neighbours(facts: Facts) -> Iterator[Finding]:
    """Other pipelines on this machine with the same source and destination. (Spark is not needed
    to know them.)"""
    settings = facts.settings
    for folder, other in pipelines_on_this_machine(settings):
        if other.name != settings.name and other.writes(facts.source_id, settings.destination.uri):
            yield warning(
                _AREA,
                "neighbours",
                f"The pipeline {other.name} (log: {folder}) also replicates this database to "
                f"{other.destination}.",
                f"To use that pipeline, give its name: `name: {other.name}` in the settings, or "
                f"--name {other.name}. Two pipelines cannot write the same tables: use another "
                "folder, or other names (mapping.template).",
            )


def _writing(destination: Destination, shown: str) -> Iterator[Finding]:
    if not destination.capabilities.checks:
        yield skipped(
            _AREA,
            "writing",
            f"whether tables can be written: {destination.name} has no check_writable",
        )
        return
    destination.check_writable()
    yield ok(_AREA, "writing", f"{shown} can be written: a scratch table was created and removed")


def _delivery(capabilities: Capabilities) -> Iterator[Finding]:
    if capabilities.keeps_position:
        yield ok(_AREA, "delivery", "delivery is effectively once: rows and position in one commit")
        return
    yield ok(
        _AREA,
        "delivery",
        "delivery is at least once: after a crash, the last changes come again (the destination "
        "keeps no position with its rows)",
    )
