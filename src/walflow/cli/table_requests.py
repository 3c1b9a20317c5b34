"""``walflow retry``, ``rollback``, ``resync``: asking a pipeline to do something for tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from walflow.cli.help_pages import HelpedCommand, debug_option
from walflow.cli.options import Chosen, pipeline_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from walflow.model import TableName
    from walflow.stores.base import Action, Request, Store

__all__ = ["resync", "retry", "rollback"]

_POLL_SECONDS = 0.2

_EPILOG = (
    "TABLE is schema.table, or just table for one in the schema public. Write names with dots, "
    "spaces or quotes as in SQL, in double quotes, and quote these for the shell: "
    '\'"My Schema"."a.b"\'.\n\n'
    "The request goes through the pipeline's store. A pipeline that runs, here or on another "
    "machine, does it within seconds; one that does not run does it at its next start.\n\n"
    "Exit code 0 if it was done or requested; 75 if the pipeline has no such table; 77 if the "
    "running pipeline refused."
)

_OPTIONS = (
    click.argument("tables", nargs=-1, metavar="[FILE] TABLE..."),
    pipeline_options(ends=False, words="tables"),
    click.option(
        "--wait",
        default=15.0,
        show_default=True,
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="How long to wait for a running pipeline's answer.",
    ),
    click.option("--no-wait", is_flag=True, help="Ask, and do not wait for the answer."),
    debug_option,
)


def _table_options(function: Any) -> Any:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command(
    cls=HelpedCommand,
    epilog=_EPILOG,
    examples=(
        "walflow retry pipeline.yaml public.orders",
        "walflow retry --all-errored --name shop",
    ),
)
@_table_options
@click.option("--all-errored", is_flag=True, help="All tables that are set aside.")
def retry(tables: tuple[str, ...], all_errored: bool, **given: Any) -> int:
    """Try failed tables again now.

    They resume where they failed, and then apply what the change log has collected meanwhile.
    """
    if all_errored and tables:
        raise click.UsageError("Give tables or --all-errored, not both.")
    return _ask("retry", tables, all_errored=all_errored, **given)


@click.command(cls=HelpedCommand, epilog=_EPILOG, examples=("walflow rollback public.orders",))
@_table_options
def rollback(tables: tuple[str, ...], **given: Any) -> int:
    """Set tables back to their previous phase.

    They resume from there. Use it for a table whose last step fails each time it is tried. Where
    there is no earlier phase, the pipeline refuses.
    """
    return _ask("rollback", tables, **given)


@click.command(
    cls=HelpedCommand,
    epilog=_EPILOG,
    examples=("walflow resync public.orders public.items --no-wait",),
)
@_table_options
def resync(tables: tuple[str, ...], **given: Any) -> int:
    """Copy tables again from the source, while the others go on.

    Where the destination can swap tables, readers see the old rows until the copy is complete.
    """
    return _ask("resync", tables, **given)


def _ask(
    verb: str,
    tables: Sequence[str],
    *,
    chosen: Chosen,
    wait: float,
    no_wait: bool,
    all_errored: bool = False,
) -> int:
    from walflow.cli.open_store import opened_store
    from walflow.cli.table_names import find_table
    from walflow.errors import ConfigError
    from walflow.model import Phase
    from walflow.stores.base import Action
    from walflow.stores.own import takes_requests

    if not tables and not all_errored:
        listed = chosen.found_again("they are listed by `walflow status`")
        raise click.UsageError(f"Name at least one table; {listed}")
    with opened_store(chosen.store_settings()) as store:
        if not takes_requests(store):
            raise ConfigError(
                "The pipeline's store keeps no requests of other processes.",
                hint="Give it the calls of walflow.stores.base.RequestStore, or ask in the "
                f"pipeline's own process: Pipeline.{verb}(table).",
            )
        store.load_table_replication_states()
        states = store.get_table_replication_states().values()
        if all_errored:
            selected = sorted(state.table for state in states if state.phase is Phase.ERRORED)
        else:
            known = {state.table for state in states}
            selected = list(dict.fromkeys(find_table(table, known) for table in tables))
        if not selected:
            tried = sorted(str(state.table) for state in states if state.error is not None)
            when = "being tried again just now" if _runs(store) else "tried again at the next start"
            also = f"; {when}: {', '.join(tried)}" if tried else ""
            click.echo(f"No table is set aside{also}.")
            return 0
        asked = _put(store, Action(verb), selected)
        seconds = 0.0 if no_wait else wait
        answered = _answers(store, asked, seconds) if seconds else {}
        return _tell(chosen, asked, answered, running=_runs(store), waited=seconds)


def _put(store: Store, action: Action, tables: Iterable[TableName]) -> list[Request]:
    """Store the requests. One that is stored already and not answered yet is not stored twice."""
    from walflow.stores.base import Request

    pending = {(request.table, request.action): request for request in store.open_requests()}
    asked = []
    for table in tables:
        request = pending.get((table, action))
        if request is None:
            request = Request.new(table, action)
            store.put_request(request)
        asked.append(request)
    return asked


def _runs(store: Store) -> bool:
    from walflow.pipeline.state.process_marks import is_held

    return is_held(store.get_lease())


def _answers(store: Store, asked: Sequence[Request], seconds: float) -> dict[str, Request]:
    """Answers by request id, as far as they come in time, while a process runs the pipeline."""
    import time

    deadline = time.monotonic() + seconds
    answered: dict[str, Request] = {}
    while True:
        running = _runs(store)
        for request in asked:
            if request.id not in answered:
                found = store.get_request(request.id)
                if found is not None and found.outcome is not None:
                    answered[request.id] = found
        if len(answered) == len(asked) or not running or time.monotonic() >= deadline:
            return answered
        time.sleep(_POLL_SECONDS)


def _tell(
    chosen: Chosen,
    asked: Sequence[Request],
    answered: dict[str, Request],
    *,
    running: bool,
    waited: float,
) -> int:
    from walflow.errors import RequestRefused

    refused: list[Request] = []
    for request in asked:
        what = f"{request.table}: {request.action.value}"
        answer = answered.get(request.id)
        if answer is None and running:
            late = f"; no answer within {waited:g} s, see `walflow status`" if waited else ""
            click.echo(chosen.found_again(f"{what} requested{late}"))
        elif answer is None:
            click.echo(f"{what} requested; the pipeline does not run: done at its next start")
        elif answer.refused:
            refused.append(answer)
        else:
            click.echo(chosen.found_again(answer.outcome or ""))
    if refused:
        raise RequestRefused(
            "The pipeline refused. " + " ".join(str(one.outcome) for one in refused),
            hint="`walflow status` shows the state of the tables.",
        )
    return 0
