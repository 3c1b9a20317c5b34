"""``--debug``, which every command takes, before its name or after it."""

from __future__ import annotations

import click

__all__ = ["debug_option", "is_debug"]

_KEY = "walflow.debug"


def _remember(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        # Shared by the contexts of all commands on the line.
        context.meta[_KEY] = True


debug_option = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    callback=_remember,
    help="Stack traces, debug logs, and what Spark logs.",
)


def is_debug(context: click.Context) -> bool:
    """Whether it was given anywhere on the command line."""
    return bool(context.meta.get(_KEY))
