"""``walflow check``: tries out what a pipeline needs."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import click

from walflow.cli.help_pages import HelpedCommand, debug_option, is_debug
from walflow.cli.options import SETTINGS_EPILOG, Chosen, pipeline_options

if TYPE_CHECKING:
    from walflow.checks.findings import Facts, Finding
    from walflow.cli.findings_text import Findings

__all__ = ["check"]

_POLL_SECONDS = 0.1


@click.command(
    cls=HelpedCommand,
    epilog="The command tries out the connection, server settings, role, a temporary slot, how "
    "long slots are kept, and clocks; publication, rights, replica identities, types and names of "
    "the tables; the store; the change log's folder and its space; Java and jars; and the "
    "destination, with a scratch table. It removes or rolls back all that it created, including "
    "the publication of --create-publication.\n\n"
    "Exit code 0 if there is no error; else the code of the first error, with which `walflow run` "
    "would end too; with --strict 83 if there are only warnings.\n\n"
    "The object of --json: pipeline, ok, errors, warnings (how many), checks (area, check, verdict "
    "(ok, warning, error, not tried), message, hint, code). Keys are never removed.\n\n"
    + SETTINGS_EPILOG,
    examples=(
        "walflow check --from postgresql://walflow@db/shop --to iceberg:///data/lake",
        "walflow check pipeline.yaml --quick --strict",
        "walflow check pipeline.yaml --json | jq '.checks[] | select(.verdict != \"ok\")'",
    ),
)
@pipeline_options(ends=True, publishing=True)
@click.option(
    "--quick",
    "--no-spark",
    "quick",
    is_flag=True,
    help="Do not start Spark (saves 10 s); so writing to a lake is not tried.",
)
@click.option("--strict", is_flag=True, help="Warnings are errors.")
@click.option("--verbose", "-v", is_flag=True, help="Show all tables, and all columns with types.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
# For tests, which must not depend on how busy the machine is.
@click.option("--patience", type=click.FloatRange(min=0), default=10.0, hidden=True)
@debug_option
@click.pass_context
def check(context: click.Context, /, chosen: Chosen, **given: Any) -> int:
    """Try out whether a pipeline would work, and say what to do."""
    from walflow.checks.findings import Facts
    from walflow.cli.findings_text import Findings
    from walflow.observe import logs

    settings = chosen.settings()
    # The findings already have what is useful of these messages.
    logs.configure(level="debug" if is_debug(context) else "critical")
    facts = Facts(
        settings, quick=given["quick"], debug=is_debug(context), patience=given["patience"]
    )
    findings = Findings(settings, chosen.found_again, verbose=given["verbose"])
    if given["as_json"]:
        code = _attended(facts, findings)
        if not code:
            click.echo(findings.as_json())
    else:
        with findings.shown():
            code = _attended(facts, findings)
    if code:
        click.echo("Stopped. All that the checks created is removed.", err=True)
    return code or findings.exit_code(strict=given["strict"])


def _attended(facts: Facts, findings: Findings) -> int:
    """Perform the checks in a thread. The first Ctrl-C or SIGTERM ends them with cleaning up, a
    second one at once. Gives the exit code of a signal, or 0."""
    import queue

    from walflow.checks.destination import STARTING
    from walflow.checks.performing import perform
    from walflow.cli.processes import (
        Signals,
        Work,
        end_descendants,
        leave_at_once,
        own_temporary_folder,
    )

    found: queue.SimpleQueue[Finding | str] = queue.SimpleQueue()

    def work() -> None:
        with closing(perform(facts)) as performing:
            for finding in performing:
                found.put(finding)
                if facts.stopped():
                    return

    with Signals() as signals, own_temporary_folder() as folder:
        facts.stopped = lambda: signals.count > 0
        facts.doing = found.put
        working = Work(work)
        working.start()
        while working.is_alive() or not found.empty():
            if signals.count:
                if findings.doing == STARTING:
                    # Nothing is created yet. The check that waits for Spark fails, and cleans up.
                    end_descendants()
                findings.stop()
                working.join(_POLL_SECONDS)
            if signals.count > 1:
                leave_at_once(signals.exit_code, folder)
            with suppress(queue.Empty):
                taken = found.get(timeout=_POLL_SECONDS)
                # A signal to all our processes ends Spark too; that error is of no interest.
                if not signals.count:
                    findings.take(taken)
        if signals.count:
            findings.stop()
            return signals.exit_code
        working.result()
    return 0
