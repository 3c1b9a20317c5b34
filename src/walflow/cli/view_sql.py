"""``walflow view``: how to read a table where the catalog keeps no views."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from walflow.cli.debugging import debug_option, is_debug
from walflow.cli.helping import HelpedCommand
from walflow.cli.options import SETTINGS_EPILOG, Chosen, pipeline_options

if TYPE_CHECKING:
    from walflow.config import Settings
    from walflow.model import TableName

__all__ = ["view"]


@click.command(
    cls=HelpedCommand,
    epilog="With `apply.freshness: view` a table is two: one with its rows as they once were, and "
    "one with the changes since. A view shows both as one. Catalogs that keep views have it under "
    "the table's name; for others this prints it, for a session of Spark SQL, and other engines "
    "need hardly more than other quotes. It stays right until a column of the table changes. Of a "
    "table that changes are merged into, it prints a view of the table itself.\n\n"
    "TABLE is the source's schema.table, or just table for one in the schema public. The source is "
    "not asked, and the pipeline may run or not. Exit code 75 if there is no such table.\n\n"
    + SETTINGS_EPILOG,
    examples=("walflow view pipeline.yaml public.events > events.sql",),
)
@click.argument("words", nargs=-1, metavar="[FILE] TABLE")
@pipeline_options(ends=True, words="words")
@debug_option
@click.pass_context
def view(context: click.Context, /, words: tuple[str, ...], chosen: Chosen) -> int:
    """Print the SQL of the view that shows a table."""
    from walflow.cli.opening import told_of_spark
    from walflow.cli.processes import own_temporary_folder
    from walflow.destinations import check_is_lake
    from walflow.mapping import TableMapping
    from walflow.observe import logs
    from walflow.spark.names import quoted

    if len(words) != 1:
        raise click.UsageError("Name one table.")
    (table,) = words
    settings = chosen.known_settings(source=False)
    check_is_lake(settings, "view")
    chosen.check_told(settings)
    name = TableMapping(settings.mapping).destination(_source_name(settings, table))
    logs.configure(level="warning")
    with told_of_spark("to look into the destination"), own_temporary_folder():
        query = _query(settings, name, debug=is_debug(context))
    click.echo(f"CREATE OR REPLACE TEMPORARY VIEW {quoted(name.name)} AS\n{query};")
    return 0


def _source_name(settings: Settings, table: str) -> TableName:
    """The name that is meant: one of those in the store, if that is to be had here."""
    from walflow.cli.naming import find_table, read_name
    from walflow.cli.opening import opened_store_if_any

    with opened_store_if_any(settings) as store:
        if store is None:
            return read_name(table)
        states = store.get_table_replication_states().values()
        return find_table(table, [state.table for state in states])


def _query(settings: Settings, name: TableName, *, debug: bool) -> str:
    from walflow.destinations import open_destination
    from walflow.destinations.lake import LakeDestination
    from walflow.errors import UnknownTable

    # Whose the tables are does not matter to who only reads.
    opened = open_destination(settings, "", debug=debug, warm_up=False)
    try:
        assert isinstance(opened.destination, LakeDestination)
        query = opened.destination.reading_query(name)
    finally:
        opened.close()
    if query is None:
        raise UnknownTable(
            f"The destination has no table {name}.",
            hint="It has those whose copy is complete: `walflow status` says which.",
        )
    return query
