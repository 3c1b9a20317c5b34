"""``walflow drop``: removes a pipeline and all that it created."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from walflow.cli.help_pages import HelpedCommand, debug_option, is_debug
from walflow.cli.options import SETTINGS_EPILOG, Chosen, pipeline_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from walflow.config import Settings
    from walflow.pipeline.drop import Remains

__all__ = ["drop"]


@click.command(
    cls=HelpedCommand,
    epilog="The command removes the replication slot; the publication, if walflow created it and "
    "no other pipeline is known to read it; the destination's tables that are marked as this "
    "pipeline's, including those of source tables that were renamed or left the publication, "
    "unless --keep-tables is given; the change log; and the pipeline's state in the store. The "
    "store itself stays where others may use it: the file of an SQLite store that store.uri names, "
    "the schema of a Postgres store.\n\n"
    "Settings that neither FILE nor options give are known from the pipeline's last start, except "
    "passwords: give the source's by PGPASSWORD or --from URI. Spark is started for the tables of "
    "a lake, unless --keep-tables is given: it also finds tables that the pipeline no longer "
    "follows.\n\n"
    "Nothing is removed while a process runs the pipeline (exit code 72), or when the source does "
    "not answer. Things that are gone already are skipped, so an interrupted drop can be repeated. "
    "Exit code 1 if it was not confirmed.\n\n" + SETTINGS_EPILOG,
    examples=("walflow drop pipeline.yaml", "walflow drop pipeline.yaml --keep-tables --yes"),
)
@pipeline_options(ends=True)
@click.option("--keep-tables", is_flag=True, help="Leave the destination's tables as they are.")
@click.option(
    "--skip-source",
    is_flag=True,
    help="Do not connect to the source, which may be gone; print the SQL to run if it comes back.",
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
    """Remove a pipeline and all that it created."""
    from walflow.cli.open_store import opened_store_if_any
    from walflow.cli.processes import own_temporary_folder
    from walflow.observe import logs
    from walflow.pipeline.drop import (
        drop_pipeline,
        drop_sql,
        find_remains,
        may_drop_tables,
        remove_leftovers,
    )

    settings = chosen.noted_settings()
    if not keep_tables and may_drop_tables(settings):
        chosen.check_complete(
            settings, otherwise=" Or leave the tables as they are: --keep-tables."
        )
    # Before the pipeline's notes are removed.
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
            click.echo(f"The pipeline {settings.name} has nothing to remove.")
    remove_leftovers(settings)
    if by_hand:
        click.echo("This is left on the source. If it comes back, run there:")
        for statement in by_hand:
            click.echo(f"  {statement}")
        click.echo("(Drop the publication only if nothing else uses it.)")
    return 0


@contextmanager
def _hinted_at_passwords(chosen: Chosen) -> Iterator[None]:
    """Add a hint about passwords: the source's URI may be noted, but never its password."""
    from walflow.errors import AuthenticationFailed

    try:
        yield
    except AuthenticationFailed as error:
        notes = chosen.notes
        if notes is not None and "source.uri" in notes.left_out and not chosen.ends["source.uri"]:
            error.hint = (
                "walflow stores no passwords: name the pipeline's settings file, give --from URI, "
                f"or set PGPASSWORD. {error.hint}"
            )
        raise


def _listed(settings: Settings, remains: Remains) -> Iterator[str]:
    yield f"These things of the pipeline {settings.name} will be removed:"
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
        yield "These stay, because it is not known whether they belong to this pipeline:"
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
            hint="Run it in a terminal, or give --yes.",
        )
    return click.confirm("Remove all this?")
