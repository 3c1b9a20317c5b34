"""The page of the command line: the ``--help`` of every command."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from tools.docs.markdown import code, table
from walflow.cli import walflow

__all__ = ["commands_page"]

_INTRODUCTION = """\
# Command line

The `--help` of each command. Options win over the environment, and that over the file: see
[settings](settings.md).
"""


def commands_page() -> str:
    lines = [_INTRODUCTION]
    for context in _contexts(walflow, None):
        lines += _section(context)
    return "\n".join(lines)


def _contexts(command: click.Command, parent: click.Context | None) -> Iterator[click.Context]:
    """The contexts of the command and of all its subcommands."""
    context = click.Context(
        command, parent=parent, info_name=command.name, **command.context_settings
    )
    yield context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from _contexts(below, context)


def _section(context: click.Context) -> Iterator[str]:
    command = context.command
    yield f"## `{context.command_path}`"
    yield ""
    yield from _text(command.help or "")
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield f"```text\n{usage}\n```\n"
    records = [param.get_help_record(context) for param in command.get_params(context)]
    # Help texts are aligned with spaces.
    yield from table(
        ["Option", ""],
        ([code(record[0]), _plain(" ".join(record[1].split()))] for record in records if record),
    )
    yield from _text(command.epilog or "")


def _text(text: str) -> Iterator[str]:
    """Paragraphs. Those that click does not wrap (after a line with \\b) stay unchanged."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            kept = paragraph.removeprefix("\b").strip("\n")
            yield f"```text\n{kept}\n```\n"
        elif paragraph:
            yield _plain(paragraph) + "\n"


def _plain(text: str) -> str:
    """The text, escaped for Markdown except in code."""
    parts = text.split("`")
    for at in range(0, len(parts), 2):
        for character in "<*_[":
            parts[at] = parts[at].replace(character, f"\\{character}")
    return "`".join(parts)
