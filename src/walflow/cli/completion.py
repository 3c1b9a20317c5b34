"""``walflow completion``: a script with which a shell completes commands and options."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from walflow.cli.help_pages import HelpedCommand, debug_option

__all__ = ["completion"]

_PLACES = {
    "bash": "walflow completion bash > ~/.local/share/bash-completion/completions/walflow",
    "zsh": "echo 'eval \"$(walflow completion zsh)\"' >> ~/.zshrc",
    "fish": "walflow completion fish > ~/.config/fish/completions/walflow.fish",
}
"""How to install the script for each shell."""


def _own_shell() -> str | None:
    name = Path(os.environ.get("SHELL", "")).name
    return name if name in _PLACES else None


@click.command(
    cls=HelpedCommand,
    epilog="Without an argument, for the shell that $SHELL names. New shells use it. In bash, the "
    "folder must exist (mkdir -p) and the package bash-completion must be installed; else put the "
    "line for zsh, with bash in it, into ~/.bashrc.",
    examples=list(_PLACES.values()),
)
@click.argument("shell", required=False, type=click.Choice(list(_PLACES)))
@debug_option
@click.pass_context
def completion(context: click.Context, shell: str | None) -> None:
    """Print the script that completes commands in your shell."""
    from click.shell_completion import get_completion_class

    shell = shell or _own_shell()
    if shell is None:
        raise click.UsageError(f"Name the shell: {', '.join(_PLACES)}.")
    found = get_completion_class(shell)
    assert found is not None
    root = context.find_root()
    click.echo(found(root.command, {}, "walflow", "_WALFLOW_COMPLETE").source())
    if sys.stdout.isatty():
        click.echo(f"# To install it: {_PLACES[shell]}", err=True)
