"""The ``walflow`` command.

Commands import what they need when they run, so that ``walflow --help`` answers at once.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from walflow.cli.as_of import as_of
from walflow.cli.bench import bench
from walflow.cli.check import check
from walflow.cli.completion import completion
from walflow.cli.demo import demo
from walflow.cli.drop import drop
from walflow.cli.failures import exit_codes, report
from walflow.cli.help_pages import HelpedGroup, debug_option
from walflow.cli.init import init
from walflow.cli.list_pipelines import list_pipelines
from walflow.cli.run import run
from walflow.cli.status import status
from walflow.cli.table_requests import resync, retry, rollback

__all__ = ["main", "walflow"]


_COMMANDS = {
    "Set up": (init, check),
    "Run": (run, list_pipelines, status, retry, rollback, resync, drop),
    "Read the tables": (as_of,),
    "More": (demo, bench, completion),
}


@click.group(
    cls=HelpedGroup,
    sections={
        title: [command.name or "" for command in commands] for title, commands in _COMMANDS.items()
    },
    examples=(
        "walflow demo",
        "walflow check --from postgresql://walflow@db/shop --to iceberg:///data/lake",
        "walflow run --from postgresql://walflow@db/shop --to iceberg:///data/lake "
        "--create-publication",
    ),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    # Not wrapped.
    epilog=f"\b\n{exit_codes()}",
)
@debug_option
@click.version_option(package_name="walflow", message="%(prog)s %(version)s")
def walflow() -> None:
    """Keep analytical tables equal to Postgres tables.

    A pipeline copies the tables of a publication once, then follows the write-ahead log. It needs
    two URIs, or a settings file.
    """


for commands in _COMMANDS.values():
    for command in commands:
        walflow.add_command(command)


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit with its code; every failure is shown in one message."""
    if sys.platform == "linux":
        # Before Arrow is loaded. Its own choice (mimalloc) keeps for each thread what it once had.
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
    sys.exit(_exit_code(sys.argv[1:] if arguments is None else arguments))


def _exit_code(arguments: list[str]) -> int:
    try:
        code: Any = walflow.main(arguments, prog_name="walflow", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("Stopped.", err=True)
        return 130
    except Exception as error:
        return report(error, debug="--debug" in arguments)
    return code if isinstance(code, int) else 0
