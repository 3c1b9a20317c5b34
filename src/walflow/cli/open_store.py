"""Opening the store of an existing pipeline. No store is created."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import click

from walflow.config import Settings
from walflow.errors import ConfigError
from walflow.stores import open_store, state_file, state_file_is_there
from walflow.stores.base import Store

__all__ = ["announcing_spark", "opened_store", "opened_store_if_any"]

_HINT = "Name the pipeline as for `walflow run`: with FILE, --name, --log, or --set store.uri=…"


@contextmanager
def opened_store(settings: Settings) -> Iterator[Store]:
    """The store, closed after the block; raises ConfigError if it does not have the pipeline."""
    with opened_store_if_any(settings) as store:
        if store is None:
            raise ConfigError(
                f"The pipeline {settings.name!r} has no state: {_missing(settings)}.",
                hint=_HINT,
            )
        if not store.get_table_replication_states() and store.get_lease() is None:
            raise ConfigError(
                f"The store does not have the pipeline {settings.name!r}: it never ran, or it was "
                "dropped.",
                hint=_HINT,
            )
        yield store


@contextmanager
def opened_store_if_any(settings: Settings) -> Iterator[Store | None]:
    """The store, closed after the block; None if it does not exist yet."""
    file = state_file(settings)
    if _in_memory(settings) or (file is not None and not state_file_is_there(settings)):
        yield None
        return
    with closing(open_store(settings)) as store:
        store.load_table_replication_states()
        yield store


@contextmanager
def announcing_spark(why: str) -> Iterator[None]:
    """Say that Spark is started in the block, which takes a while, and which jars are fetched. On
    stderr, because the answer goes to stdout."""
    from walflow.spark.jars import telling_of_jars

    click.echo(f"Starting Spark {why} (10 s to a minute) …", err=True)
    with telling_of_jars(lambda text: click.echo(f"{text} …", err=True)):
        yield


def _in_memory(settings: Settings) -> bool:
    uri = settings.store.uri
    return uri is not None and uri.get_secret_value().startswith("memory:")


def _missing(settings: Settings) -> str:
    if _in_memory(settings):
        return "its store is the memory of the process that runs it"
    return f"{state_file(settings)} does not exist"
