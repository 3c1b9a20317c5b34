"""``walflow as-of``: all tables as of one position of the source."""

from __future__ import annotations

import re
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from walflow.cli.help_pages import HelpedCommand, debug_option, is_debug
from walflow.cli.options import SETTINGS_EPILOG, Chosen, pipeline_options
from walflow.paths import is_there

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from walflow.config import Settings
    from walflow.destinations.lake.consistent_cuts import AsOf, RecordedCut
    from walflow.model import Lsn, Phase, TableName

__all__ = ["as_of"]

_LSN = re.compile(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}")
_NUMBER = re.compile(r"[0-9]{1,19}")


@click.command(
    "as-of",
    cls=HelpedCommand,
    epilog="While tables change, the pipeline records a consistent cut every few seconds: which "
    "snapshots of the tables belong together. This command prints the newest cut, or the newest up "
    "to LSN or --at, and for each table the query that reads it. All tables then show the source "
    "at the same commit. The cuts are in the destination, in "
    "_walflow.consistent_cuts_<name>. All are kept for 15 minutes, then one a minute for an hour, "
    "one in ten minutes for a day, one an hour for 30 days, "
    "at most for maintenance.keep_snapshots_seconds.\n\n"
    "LSN is a position as Postgres writes it (0/16B3748), or a number as in the column _LSN.\n\n"
    "The pipeline need not run, and the source is not asked. The cuts are also noted beside the "
    "change log. Spark is started only if that is not enough: if the store is not a file of this "
    "machine (the pipeline may have run elsewhere since), or if a table was copied again.\n\n"
    "Exit code 79 if there is no cut yet, 82 if there is none that old any more, 75 if the "
    "pipeline does not have the table.\n\n"
    "The object of --json: lsn, lsn_number (the cut has all commits up to it), since, since_number "
    "(the cut is the same from this position on), commit_time (of its last transaction, null if "
    "not known), recorded_at, asked, exact (whether it is as of the position asked for; null with "
    "--at, where it is not known whether anything was committed in between), tables (table, "
    "destination, snapshot_id, query), missing (table, phase). Keys are never "
    "removed.\n\n" + SETTINGS_EPILOG,
    examples=(
        "walflow as-of pipeline.yaml",
        "walflow as-of 0/16B3748 --table public.orders --name shop",
        "walflow as-of pipeline.yaml --at 2026-11-15T12:00:00Z --json",
    ),
)
@click.argument("words", nargs=-1, metavar="[FILE] [LSN]")
@pipeline_options(ends=True, words="words")
@click.option("--at", "moment", metavar="TIME", help="A time instead of LSN: 2026-11-15T12:00:00Z.")
@click.option(
    "--table", "only", multiple=True, metavar="NAME", help="Only this table; can be repeated."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@debug_option
@click.pass_context
def as_of(
    context: click.Context,
    /,
    words: tuple[str, ...],
    chosen: Chosen,
    moment: str | None,
    only: tuple[str, ...],
    as_json: bool,
) -> int:
    """Print the SQL that reads all tables as of one commit."""
    from walflow.cli.open_store import announcing_spark
    from walflow.cli.processes import own_temporary_folder
    from walflow.destinations import check_is_lake
    from walflow.observe import logs

    if len(words) > 1:
        raise click.UsageError(f"Give one LSN, not {' and '.join(words)}.")
    position = next(iter(words), None)
    if position is not None and moment is not None:
        raise click.UsageError("Give LSN or --at, not both.")
    at = None if position is None else _lsn(position)
    when = None if moment is None else _time(moment)
    settings = chosen.noted_settings(source=False)
    check_is_lake(settings, "as-of")
    phases = _phases(settings)
    # Before Spark is started, if the names are known already.
    selected = _meant(only, phases) if phases else None
    found = _noted(settings, at, when, selected)
    if found is None:
        chosen.check_complete(settings)
        logs.configure(level="warning")
        with announcing_spark("to look into the destination"), own_temporary_folder():
            found = _read(settings, at, when, debug=is_debug(context))
    if selected is None:
        selected = _meant(only, [table.source for table in found.cut.tables])
    is_exact = None if when is not None else at is None or at <= found.cut.upto
    shown = _shown(found, is_exact, phases, selected)
    if as_json:
        import json

        click.echo(json.dumps({**shown, "asked": position or moment}, ensure_ascii=False))
    else:
        _print(shown, position or moment)
    return 0


def _noted(
    settings: Settings,
    at: Lsn | None,
    when: datetime | None,
    selected: Collection[TableName] | None,
) -> AsOf | None:
    """The cut that is noted on this machine; None if the destination must be asked."""
    from walflow.destinations import place_of
    from walflow.destinations.lake.noted_cuts import noted_as_of
    from walflow.stores import state_file

    if state_file(settings) is None:
        # It may have run on another machine since.
        return None
    found = noted_as_of(settings.cuts_file, place_of(settings), at, when)
    if found is None:
        return None
    pairs = zip(found.cut.tables, found.queries, strict=True)
    certain = all(query for table, query in pairs if not selected or table.source in selected)
    return found if certain else None


def _lsn(text: str) -> Lsn:
    from walflow.model import Lsn

    if _NUMBER.fullmatch(text) is not None and int(text) < 1 << 63:
        return Lsn(int(text))
    if _LSN.fullmatch(text) is None:
        is_file = is_there(Path(text)) and Path(text).is_file()
        advice = f" A settings file is given with -f {shlex.quote(text)}." if is_file else ""
        raise click.UsageError(
            f"{text!r} is not a log position: one looks like 16/B374D848, or is a number as in "
            f"the column _LSN.{advice}"
        )
    return Lsn.parse(text)


def _time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"{text!r} is not a time: one looks like 2026-11-15T12:00:00Z."
        ) from None
    # Without a zone, the time is local time.
    return moment.astimezone(UTC)


def _phases(settings: Settings) -> Mapping[TableName, Phase]:
    """The phases of the pipeline's tables; none if its store cannot be opened here."""
    from walflow.cli.open_store import opened_store_if_any

    with opened_store_if_any(settings) as store:
        if store is None:
            return {}
        states = store.get_table_replication_states().values()
        return {state.table: state.phase for state in states}


def _meant(only: tuple[str, ...], known: Collection[TableName]) -> frozenset[TableName]:
    """The tables that are asked for; none: all of them."""
    from walflow.cli.table_names import find_table

    return frozenset(find_table(text, known) for text in only)


def _read(settings: Settings, at: Lsn | None, when: datetime | None, *, debug: bool) -> AsOf:
    from walflow.destinations import open_destination
    from walflow.destinations.lake import LakeDestination

    # Reading does not depend on which pipeline owns the tables.
    opened = open_destination(settings, "", debug=debug, warm_up=False)
    try:
        destination = opened.destination
        assert isinstance(destination, LakeDestination)
        found = destination.as_of(at, when)
        if found is None:
            raise _nothing(settings, at, when, destination.oldest_cut())
    finally:
        opened.close()
    return found


def _nothing(
    settings: Settings, at: Lsn | None, when: datetime | None, oldest: RecordedCut | None
) -> Exception:
    from walflow.errors import ConsistentCutGone, NoConsistentCut

    if oldest is None:
        return NoConsistentCut(
            f"there is no consistent cut of the pipeline {settings.name} in {_uri(settings)}",
            hint="Cuts are recorded while `walflow run` follows tables that are Ready: let it run "
            "for a moment. Name another pipeline with --name and --to.",
        )
    asked = when.isoformat() if at is None and when is not None else at
    return ConsistentCutGone(
        f"there is no consistent cut as old as {asked}: the oldest one is of {oldest.since}"
        f" ({_written(oldest)})",
        hint=f"Ask for {oldest.since} or later. maintenance.keep_snapshots_seconds says how long "
        "cuts are kept.",
    )


def _uri(settings: Settings) -> str:
    from walflow.redaction import redacted

    return redacted(settings.destination.uri)


def _written(cut: RecordedCut) -> str:
    if cut.commit_time is not None:
        return f"committed {_iso(cut.commit_time)}"
    return f"recorded {_iso(cut.recorded)}"


def _iso(moment: datetime) -> str:
    from walflow.units import iso_time

    return iso_time(moment.timestamp())


def _shown(
    found: AsOf,
    is_exact: bool | None,
    phases: Mapping[TableName, Phase],
    only: Collection[TableName],
) -> dict[str, Any]:
    from walflow.errors import ConsistentCutGone

    cut = found.cut
    selected = [
        (table, query)
        for table, query in zip(cut.tables, found.queries, strict=True)
        if not only or table.source in only
    ]
    gone = [str(table.source) for table, query in selected if query is None]
    if gone:
        raise ConsistentCutGone(
            f"the snapshots of {', '.join(gone)} in the consistent cut of {cut.upto} are gone",
            hint="Something else has expired them, or the table was dropped. Ask for a newer cut, "
            "or leave the table out: --table NAME for each of the others.",
        )
    there = {table.source for table, _ in selected}
    return {
        "lsn": str(cut.upto),
        "lsn_number": int(cut.upto),
        "since": str(cut.since),
        "since_number": int(cut.since),
        "commit_time": None if cut.commit_time is None else _iso(cut.commit_time),
        "recorded_at": _iso(cut.recorded),
        "exact": is_exact,
        "tables": [
            {
                "table": str(table.source),
                "destination": str(table.table),
                "snapshot_id": table.version,
                "query": query,
            }
            for table, query in selected
        ],
        "missing": [
            {"table": str(name), "phase": phase.value}
            for name, phase in sorted(phases.items())
            if name not in there and (not only or name in only)
        ],
    }


def _print(shown: Mapping[str, Any], asked: str | None) -> None:
    """As SQL, so that all lines can be pasted."""
    time = shown["commit_time"]
    when_made = f"committed {time}" if time is not None else f"recorded {shown['recorded_at']}"
    click.echo(f"-- All tables as of {shown['lsn']} (_LSN {shown['lsn_number']}, {when_made})")
    if shown["exact"] is None:
        click.echo(
            f"-- The newest cut up to {asked}: what was committed in between may be missing."
        )
    elif not shown["exact"]:
        click.echo(f"-- There is no cut at {asked} itself: this is the newest one before it.")
    for missing in shown["missing"]:
        click.echo(f"-- Not in it: {missing['table']} (now {missing['phase']})")
    for table in shown["tables"]:
        click.echo(f"{table['query']};")
