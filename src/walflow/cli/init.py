"""``walflow init``: writes a commented settings file for a live database."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from walflow.cli.help_pages import HelpedCommand, debug_option
from walflow.errors import ConfigError, WalflowError
from walflow.paths import is_there

if TYPE_CHECKING:
    from collections.abc import Mapping

    from walflow.cli.init_text import Draft, WrittenUri
    from walflow.config import Settings
    from walflow.pipeline.state.pipeline_notes import PipelineNotes
    from walflow.source.catalog.server import Server
    from walflow.source.catalog.survey import SurveyedTable

__all__ = ["init"]

_STANDARD_OUTPUT = Path("-")
_SCHEMA = "walflow.schema.json"


@click.command(
    cls=HelpedCommand,
    short_help="Write a settings file from a live database.",
    epilog="The file lists the tables of the publication, or, if there is none yet, all tables of "
    "the database that can be published as they are. Passwords are not written: the file names "
    "environment variables instead, and the command says which. The database is not changed.\n\n"
    "If a pipeline on this machine already replicates this database to this destination, the file "
    "is for that pipeline: it has its name, and the settings of its last start.",
    examples=(
        "walflow init --from postgresql://walflow@db/shop --to iceberg:///data/lake",
        "walflow check pipeline.yaml",
        "walflow run pipeline.yaml",
    ),
)
@click.argument("file", default="pipeline.yaml", type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--from",
    "source",
    metavar="URI",
    required=True,
    envvar="WALFLOW_SOURCE__URI",
    show_envvar=True,
    help="postgresql://user:password@host/db",
)
@click.option(
    "--to",
    "destination",
    metavar="URI",
    envvar="WALFLOW_DESTINATION__URI",
    show_envvar=True,
    help="Where the tables go.  [default: iceberg tables in the folder lake beside FILE]",
)
@click.option(
    "--publication",
    envvar="WALFLOW_SOURCE__PUBLICATION",
    help="Whose tables are followed.  [default: walflow_<name of the pipeline>]",
)
@click.option(
    "--name",
    envvar="WALFLOW_NAME",
    help="The pipeline's name.  [default: that of the pipeline that is there, or the database's]",
)
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
@debug_option
def init(
    file: Path,
    source: str,
    destination: str | None,
    publication: str | None,
    name: str | None,
    *,
    force: bool,
) -> None:
    """Write a settings file for a database, with notes about its tables.

    FILE is pipeline.yaml by default; - is the standard output.
    """
    from walflow.cli.init_text import file_text
    from walflow.destinations.uris import check_uri

    printed = file == _STANDARD_OUTPUT
    if not printed and is_there(file) and not force:
        raise ConfigError(
            f"The file {file} exists already.",
            hint="Name another one, or overwrite it with --force.",
        )
    folder = Path.cwd() if printed else file.parent.resolve()
    settings = _settings(
        {
            "source.uri": source,
            "destination.uri": destination or f"iceberg://{folder}/lake",
            "source.publication": publication,
            "name": name,
        }
    )
    check_uri(settings.destination.uri)
    draft, variables = _look(settings, name, schema=None if printed else _SCHEMA)
    text = file_text(draft)
    if printed:
        click.echo(text, nl=False)
    else:
        _write(file, text)
    _tell(draft, variables, file)


def _settings(given: dict[str, str | None]) -> Settings:
    from walflow.config import load_settings

    return load_settings(None, given, environment={})


def _look(
    settings: Settings, name: str | None, *, schema: str | None
) -> tuple[Draft, tuple[str, ...]]:
    """What to write, and the environment variables that it needs."""
    from walflow.cli.init_text import Draft, written_destination, written_source
    from walflow.pipeline.state.pipeline_notes import with_chosen_publication
    from walflow.source.catalog.publication import find_publication
    from walflow.source.catalog.server import read_server
    from walflow.source.catalog.survey import survey_tables
    from walflow.source.connection import connect, redact

    uri = settings.source.uri.get_secret_value()
    with connect(uri, application_name="walflow init") as session:
        server = read_server(session)
        notes = _existing(settings, f"{server.system_identifier}/{server.database}", name)
        named = name or (_name_like(server.database) if notes is None else notes.name)
        if notes is not None and notes.name == named:
            settings = settings.with_publication(settings.source.publication or notes.publication)
        publication = with_chosen_publication(
            session, settings.model_copy(update={"name": named})
        ).publication
        published = find_publication(session, publication) is not None
        tables = survey_tables(session, publication if published else None)
    ends: tuple[WrittenUri, WrittenUri] = (
        written_source(uri),
        written_destination(settings.destination.uri),
    )
    warnings = _warnings(server, tables, publication if published else None)
    noted: dict[str, Any] = {}
    if notes is not None and notes.name == named:
        noted = _noted_settings(notes)
        warnings += _not_written(notes, noted)
    elif notes is not None:
        warnings.append(
            f"The pipeline {notes.name} already replicates this database to this destination, and "
            f"two pipelines cannot write the same tables. To use that one: --name {notes.name}."
        )
    draft = Draft(
        name=named,
        source=ends[0].text,
        destination=ends[1].text,
        publication=publication,
        published=published,
        tables=tuple(tables),
        warnings=tuple(warnings),
        seen=f"{redact(uri)} (Postgres {server.major})",
        schema=schema,
        going_on=_going_on(notes) if notes is not None and notes.name == named else "",
        noted=noted,
    )
    return draft, tuple(variable for end in ends for variable in end.variables)


def _existing(settings: Settings, system: str, name: str | None) -> PipelineNotes | None:
    """The pipeline on this machine that has this source and this destination; of several, the one
    of that name, or the one that was started last."""
    from walflow.pipeline.state.pipeline_notes import pipelines_on_this_machine

    found = [
        notes
        for _, notes in pipelines_on_this_machine(settings)
        if notes.writes(system, settings.destination.uri)
    ]
    return max(found, key=lambda notes: (notes.name == name, notes.started), default=None)


def _going_on(notes: PipelineNotes) -> str:
    return (
        f"The file is for the pipeline {notes.name}, which exists already: its log and state are "
        f"in {notes.log}, its slot is {notes.slot}. With another name it would be a new pipeline."
    )


def _noted_settings(notes: PipelineNotes) -> dict[str, Any]:
    """The pipeline's settings by dotted name, without its name, source and destination."""
    from walflow.config.keys import section_at
    from walflow.pipeline.state.pipeline_notes import default_logs

    found: dict[str, Any] = {}

    def flatten(values: Mapping[str, Any], path: tuple[str, ...]) -> None:
        for key, value in values.items():
            below = (*path, key)
            if section_at(below) is not None:
                flatten(value, below)
            else:
                found[".".join(below)] = value

    flatten(notes.settings, ())
    found.setdefault("log.folder", notes.log)
    if Path(found["log.folder"]) == default_logs() / notes.name:
        del found["log.folder"]
    ends = ("name", "source.uri", "source.publication", "destination.uri")
    return {key: value for key, value in found.items() if key not in ends}


def _not_written(notes: PipelineNotes, noted: Mapping[str, Any]) -> list[str]:
    """A warning about the pipeline's settings that the file does not have."""
    from walflow.cli.init_text import is_written

    ends = ("source.uri", "destination.uri")
    missing = [key for key in noted if not is_written(key)]
    missing += [key for key in notes.left_out if key not in ends]
    if not missing:
        return []
    return [
        f"The pipeline {notes.name} also has these settings, which are not in the file: "
        f"{', '.join(missing)}."
    ]


def _name_like(database: str) -> str:
    """A pipeline's name can have fewer characters than a database's."""
    return re.sub("[^a-z0-9_]+", "_", database.lower())[:50].strip("_") or "default"


def _warnings(server: Server, tables: list[SurveyedTable], publication: str | None) -> list[str]:
    """What prevents a pipeline, or changes what it does."""
    from walflow.source.catalog.preflight import check_server
    from walflow.source.catalog.publication import identity_sql
    from walflow.source.catalog.rights import select_refusal

    found = []
    try:
        check_server(server)
    except WalflowError as error:
        found.append(f"{error.message} {error.hint}")
    if not tables:
        which = "the database" if publication is None else f'the publication "{publication}"'
        found.append(f"There are no tables in {which} yet.")
    without = [name for table in tables for name in table.without_identity]
    if without:
        now = "have" if publication is None else "are published and have"
        found.append(
            f"These tables {now} no replica identity (a primary key, say), and Postgres refuses "
            f"updates and deletes of published ones: {', '.join(map(str, without))}. Give them "
            f"primary keys, or run: {identity_sql(without)}"
        )
    refusal = select_refusal(server.role, [part for table in tables for part in table.unreadable])
    if refusal is not None:
        found.append(f"{refusal.message} {refusal.hint}")
    reserved = [f"{table.name} ({', '.join(table.reserved)})" for table in tables if table.reserved]
    if reserved:
        found.append(
            "These tables have columns with names that walflow reserves: "
            f"{', '.join(reserved)}. Rename the columns, or leave them out with a column list."
        )
    return found


def _write(file: Path, text: str) -> None:
    from walflow.config.schema import settings_schema

    try:
        file.write_text(text, encoding="utf-8")
        (file.parent / _SCHEMA).write_text(settings_schema(), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"The settings file {file} cannot be written: {error.strerror}.",
            hint="Name a file in a folder that exists and is writable.",
        ) from None


def _tell(draft: Draft, variables: tuple[str, ...], file: Path) -> None:
    """On stderr, so that it does not mix with a printed file."""
    count = "1 table" if len(draft.tables) == 1 else f"{len(draft.tables)} tables"
    printed = file == _STANDARD_OUTPUT
    if draft.going_on:
        click.echo(draft.going_on, err=True)
    named = Path("pipeline.yaml") if printed else file
    done = f"Found {count}" if printed else f"Wrote {file}: {count}"
    click.echo(f"{done} of {draft.seen}.", err=True)
    for warning in draft.warnings:
        click.echo(f"{click.style('Warning:', fg='yellow', bold=True)} {warning}", err=True)
    if variables:
        click.echo("The file has no secrets. Before you use it, set:", err=True)
        for variable in variables:
            click.echo(f"  export {variable}=…", err=True)
    click.echo("Next:", err=True)
    for command in ("check", "run"):
        click.echo(f"  walflow {command} {shlex.quote(str(named))}", err=True)
