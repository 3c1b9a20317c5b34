"""Destinations: where tables are kept. ``open_destination`` finds the one that a URI names."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from walflow.config import Settings
from walflow.destinations.base import Destination
from walflow.destinations.own import adapted
from walflow.destinations.uris import (
    GROUP,
    LAKES,
    check_uri,
    is_lake,
    is_web,
    kind_of,
    warehouse_of,
)
from walflow.errors import ConfigError, DestinationError
from walflow.mapping import TableMapping
from walflow.model import TableName
from walflow.plugins import PYTHON, installed, load_object, made
from walflow.redaction import is_secret_name, redacted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from walflow.destinations.lake import LakeFormat
    from walflow.spark.jars import Package
    from walflow.spark.jobs import BackgroundJobs

__all__ = [
    "OpenDestination",
    "check_catalog",
    "check_folder",
    "check_is_lake",
    "check_named",
    "check_uri",
    "is_lake",
    "is_web",
    "open_destination",
    "open_without_spark",
    "packages_of",
    "place_of",
    "run_on_spark",
    "warehouse_of",
]


_END_SECONDS = 5.0
_END_SECONDS_ELSEWHERE = 60.0

_logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OpenDestination:
    """A destination and the Spark session that it runs on."""

    destination: Destination
    spark: SparkSession
    owns_spark: bool
    warming_up: BackgroundJobs | None = None

    def close(self) -> None:
        """End the destination, then Spark and its JVM if they are its own; a session that is not
        goes on, with no job of ours left in it. Repeats safely."""
        from walflow.spark.session import stop_session

        try:
            if self.warming_up is not None:
                # With a JVM of ours it ends anyway; in one that is not, it would go on.
                self.warming_up.end(_END_SECONDS if self.owns_spark else _END_SECONDS_ELSEWHERE)
            self.destination.shutdown()
        finally:
            if self.owns_spark:
                stop_session(self.spark)


def place_of(settings: Settings) -> str:
    """Which lake it is, for notes about it: the URI, and all options that have no secret. It is
    the same for settings that are known from notes, which lack the others."""
    options = settings.destination.options.items()
    said = sorted(
        (key, value)
        for key, value in options
        if not is_secret_name(key) and redacted(value) == value
    )
    return json.dumps([redacted(settings.destination.uri), said])


def check_named(settings: Settings) -> None:
    """BadUri or ConfigError if the settings name no destination. Opens nothing, makes nothing."""
    uri = settings.destination.uri
    check_uri(uri)
    if kind_of(uri) == "iceberg":
        from walflow.destinations.iceberg.options import check_options

        check_options(settings.destination.options)


def check_is_lake(settings: Settings, command: str) -> None:
    """ConfigError if the destination has no tables that this command of ours could read."""
    uri = settings.destination.uri
    if not is_lake(uri):
        raise ConfigError(
            f"`walflow {command}` is for tables of a lake; {redacted(uri)} is none.",
            hint="Read the destination's tables with its own means.",
        )


def packages_of(uri: str) -> tuple[Package, ...]:
    """The jars that Spark needs for the destination of this URI."""
    from walflow.spark.jars import DELTA, ICEBERG

    known = {"iceberg": (ICEBERG,), "delta": (DELTA,)}
    return known.get(kind_of(uri), ())


def open_destination(
    settings: Settings,
    source: str,
    *,
    timeline: int | None = None,
    spark: SparkSession | None = None,
    warm_up: bool = True,
    debug: bool = False,
) -> OpenDestination:
    """Start Spark (unless a session is given) and open the destination that the settings name.

    ``source`` tells sources apart: a table that came from another one is not touched.
    ``timeline``, of the source's log at the start, is only noted in commits.
    Warming up goes on in the background, so that it can overlap with the copy; without
    ``warm_up`` the first writes take seconds. With ``debug``, what the JVM logs reaches the
    terminal.
    """
    if (own := open_without_spark(settings)) is not None:
        return run_on_spark(own, settings, spark, debug=debug)
    warehouse = warehouse_of(settings.destination.uri)
    check_folder(warehouse)
    from walflow.destinations.class_archive import archived_by
    from walflow.destinations.lake import LakeDestination, Owner
    from walflow.destinations.lake.noted_cuts import NotedCuts
    from walflow.spark.jobs import BackgroundJobs
    from walflow.spark.session import make_session

    format, extensions, package = _lake_format(settings, warehouse)
    owns_spark = spark is None
    if spark is None:
        # A Spark Connect server takes only SQL's settings here; our own sessions get all of them.
        ours = {n: value for n, value in format.session_conf.items() if n.startswith("spark.sql.")}
        conf = {"spark.sql.extensions": extensions, **ours}
        spark = make_session(
            settings.spark, [package], conf, debug=debug, archived_by=archived_by(format.name)
        )
    mapping = TableMapping(settings.mapping)
    plans = {
        mapping.destination(TableName.parse(table)): settings.apply.plan_of(table)
        for table in settings.apply.tables
    }
    others = settings.apply.plan_of()
    owner = Owner(settings.name, source, timeline)
    destination = LakeDestination(
        spark,
        format,
        owner,
        lambda name: plans.get(name, others),
        maintenance=settings.maintenance,
        engine=settings.apply.engine,
        noted=NotedCuts(settings.cuts_file, place_of(settings)),
    )
    # Only speed is lost if it fails, or if the pipeline ends before it: what is really wrong
    # shows at the first write.
    warming_up = BackgroundJobs(spark, "walflow-warm-up", destination.startup) if warm_up else None
    return OpenDestination(destination, spark, owns_spark, warming_up)


def check_catalog(
    opened: OpenDestination, settings: Settings, *, begun: bool, patience: float
) -> None:
    """Of a lake whose catalog is not a folder: whether it can be reached and, unless tables are in
    it already, written to; else a DestinationError, before anything is copied.

    Where tables are already (``begun``), one that does not answer, or has not after ``patience``
    seconds, is waited for elsewhere: the source's log has to be received meanwhile.
    """
    from walflow.destinations.lake import LakeDestination

    destination = opened.destination
    if not settings.destination.options or not isinstance(destination, LakeDestination):
        return
    if not begun:
        destination.check_catalog()
        destination.check_writable()
        return
    answer: Future[None] = Future()

    def ask() -> None:
        try:
            destination.check_catalog()
        except BaseException as error:
            answer.set_exception(error)
        else:
            answer.set_result(None)

    threading.Thread(target=ask, name="walflow-check-catalog", daemon=True).start()
    reason: object = f"it has not answered for {patience:g} seconds"
    try:
        answer.result(patience)
        return
    except TimeoutError:
        pass
    except DestinationError as error:
        if not error.retry:
            raise
        reason = error
    _logger.warning("the catalog does not answer; going on until it does", error=reason)


def run_on_spark(
    destination: Destination, settings: Settings, spark: SparkSession | None, *, debug: bool = False
) -> OpenDestination:
    """Start a destination that brings no jars, and Spark for it unless a session is given."""
    from walflow.destinations.class_archive import archived_by
    from walflow.spark.session import make_session

    try:
        destination.startup()
        session = spark or make_session(
            settings.spark, [], {}, debug=debug, archived_by=archived_by()
        )
    except BaseException:
        destination.shutdown()
        raise
    return OpenDestination(destination, session, owns_spark=spark is None)


def open_without_spark(settings: Settings) -> Destination | None:
    """The destination that the URI names; None if it is a lake, which is opened on Spark."""
    uri, options = settings.destination.uri, settings.destination.options
    kind = kind_of(uri)
    if is_web(uri):
        from walflow.destinations.http import HttpDestination, HttpOptions

        return adapted(HttpDestination(uri, HttpOptions.parse(options)))
    if kind in LAKES:
        return None
    if kind == PYTHON:
        found = made(load_object(uri), "The destination", options=options)
    else:
        factory = installed(GROUP, kind)
        if factory is None:
            return None
        found = made(factory, "The destination", uri, options=options)
    return adapted(found)


def _lake_format(settings: Settings, warehouse: Path) -> tuple[LakeFormat, str, Package]:
    """The format that the URI names, and the extension and the jars that Spark needs for it."""
    from walflow.destinations import delta, iceberg
    from walflow.spark.jars import DELTA, ICEBERG

    options = settings.destination.options
    check_named(settings)
    if kind_of(settings.destination.uri) == "iceberg":
        version = settings.destination.format_version
        iceberg_format = iceberg.IcebergFormat(str(warehouse), options, version=version)
        return iceberg_format, iceberg.EXTENSIONS, ICEBERG
    if unknown := sorted(options.keys() - {"catalog"}):
        raise ConfigError(
            f"destination.options has {', '.join(unknown)}, which Delta has no use for (known: "
            "catalog, the catalog of Spark's that is to know the tables, such as spark_catalog)",
            hint="Settings of Spark, and of its catalogs, go into spark.conf.",
        )
    format = delta.DeltaFormat(str(warehouse), options.get("catalog"))
    return format, delta.EXTENSIONS, DELTA


def check_folder(folder: Path) -> None:
    """Whether the folder can be written, or else made. Makes nothing: the first write does."""
    there = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not there.is_dir():
        raise _not_writable(folder, f"{there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise _not_writable(folder, f"no permission to write in {there}")


def _not_writable(folder: Path, reason: str) -> DestinationError:
    return DestinationError(
        f"The destination's folder {folder} cannot be written: {reason}.",
        hint="Name another folder (--to iceberg:///folder or --to delta:///folder), or give this "
        "user the right to it.",
    )
