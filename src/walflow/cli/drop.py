"""``walflow drop``: the end of a pipeline, and of all that it made."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from walflow.cli.debugging import debug_option, is_debug
from walflow.cli.helping import HelpedCommand
from walflow.cli.options import SETTINGS_EPILOG, Chosen, pipeline_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from walflow.config import Settings
    from walflow.pipeline.drop import Remains

__all__ = ["drop"]


@click.command(
    cls=HelpedCommand,
    epilog="Removed are: the replication slot; the publication, if walflow made it and no other "
    "pipeline is known to read it; the destination's tables that are marked as this pipeline's, "
    "also those of source tables that were renamed or left the publication, unless --keep-tables; "
    "the change log; the pipeline's state in the store. The store itself stays where others may "
    "use it: the file of an SQLite store that store.uri names, the schema of a Postgres store.\n\n"
    "What neither FILE nor options say is known from the pipeline's last start, but for passwords: "
    "PGPASSWORD or --from URI says the source's. For the tables of a lake Spark is started, unless "
    "--keep-tables: it is asked for those, too, that the pipeline no longer follows.\n\n"
    "Nothing is removed while a process runs the pipeline (exit code 72), or when the source does "
    "not answer. What is gone already is passed over: a drop that was broken off can be repeated. "
    "Exit code 1 if it was not confirmed.\n\n" + SETTINGS_EPILOG,
    examples=("walflow drop pipeline.yaml", "walflow drop pipeline.yaml --keep-tables --yes"),
)
@pipeline_options(ends=True)
@click.option("--keep-tables", is_flag=True, help="Leave the destination's tables as they are.")
@click.option(
    "--skip-source",
    is_flag=True,
    help="Do not ask the source, which may be gone; prints the SQL to run if it comes back.",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@debug_option
@click.pass_context
def drop(
    context: click.Context,
    /,
    chosen: Chosen,
    keep_tables: bool,
    skip_source: bool,
    yes: bool,
) -> int:
    """Remove a pipeline and all that it made."""
    from walflow.cli.opening import opened_store_if_any
    from walflow.cli.processes import own_temporary_folder
    from walflow.observe import logs
    from walflow.pipeline.drop import (
        drop_pipeline,
        drop_sql,
        find_remains,
        may_drop_tables,
        remove_leftovers,
    )

    settings = chosen.known_settings()
    if not keep_tables and may_drop_tables(settings):
        chosen.check_told(settings, otherwise=" Or leave the tables as they are: --keep-tables.")
    # Before what is known of the pipeline is forgotten.
    by_hand = drop_sql(settings) if skip_source else ()
    with opened_store_if_any(settings) as store:
        with _hinted_at_passwords(chosen):
            remains = find_remains(
                settings, store, skip_source=skip_source, keep_tables=keep_tables
            )
        if remains:
            for line in _listed(settings, remains):
                click.echo(line)
            if not (yes or _confirmed(settings)):
                click.echo("Nothing was removed.")
                return 1
            logs.configure(level="warning")
            with own_temporary_folder():
                drop_pipeline(settings, store, remains, debug=is_debug(context), tell=click.echo)
        else:
            click.echo(f"There is nothing of the pipeline {settings.name} to remove.")
    remove_leftovers(settings)
    if by_hand:
        click.echo("Left on the source; if it comes back, run there:")
        for statement in by_hand:
            click.echo(f"  {statement}")
        click.echo("(The publication only if no one else uses it.)")
    return 0


@contextmanager
def _hinted_at_passwords(chosen: Chosen) -> Iterator[None]:
    """The source's URI may be known from the last start, but not the password in it."""
    from walflow.errors import AuthenticationFailed

    try:
        yield
    except AuthenticationFailed as error:
        known = chosen.known
        if known is not None and "source.uri" in known.left_out and not chosen.ends["source.uri"]:
            error.hint = (
                "walflow keeps no passwords: name the pipeline's settings file, or say --from URI, "
                f"or set PGPASSWORD. {error.hint}"
            )
        raise


def _listed(settings: Settings, remains: Remains) -> Iterator[str]:
    yield f"Of the pipeline {settings.name} these will be removed:"
    if remains.slot is not None:
        yield f"  the replication slot {remains.slot}"
    if remains.publication is not None:
        yield f"  the publication {remains.publication}"
    if remains.source is not None:
        for table in remains.tables:
            yield f"  the destination's table {table.name}"
    if remains.others:
        yield "  all other tables in the destination that are marked as this pipeline's"
    if remains.log is not None:
        yield f"  the change log {remains.log}"
    if remains.store:
        yield "  the pipeline's state in the store"
    if remains.tables and remains.source is None:
        yield "These stay, because it cannot be told whether they are this pipeline's:"
        for table in remains.tables:
            yield f"  the destination's table {table.name}"
    if remains.stays or remains.shared:
        yield "These stay:"
    for name, why in remains.stays:
        yield f"  the destination's table {name}: {why}"
    if remains.shared is not None:
        slots = ", ".join(remains.users)
        yield f"  the publication {remains.shared}: others may read it (slots: {slots})"


def _confirmed(settings: Settings) -> bool:
    from walflow.errors import ConfigError

    if not sys.stdin.isatty():
        raise ConfigError(
            f"Removing the pipeline {settings.name} needs a confirmation, and there is no "
            "terminal to ask on. Nothing was removed.",
            hint="Run it in a terminal, or say --yes.",
        )
    return click.confirm("Remove all this?")
