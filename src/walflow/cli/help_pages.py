"""What all commands share: ``--help`` as a page to read, and ``--debug``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

__all__ = ["HelpedCommand", "HelpedGroup", "debug_option", "is_debug", "setting"]

_WHICH = "Which pipeline"
_OTHERS = "Options"
_NAMES_OF_WHICH = frozenset(
    {"named_file", "source", "destination", "publication", "slot", "name", "log", "others"}
)


def setting(key: str, text: str, default: str = "") -> str:
    """The help of an option that is a setting, with its environment variable and default."""
    facts = [f"default: {default}"] if default else []
    facts.append(f"env: WALFLOW_{key.replace('.', '__').upper()}")
    return f"{text}  [{'; '.join(facts)}]"


class HelpedCommand(click.Command):
    """A command with examples. Options that choose the pipeline are listed together."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **options: Any) -> None:
        super().__init__(*args, **options)
        self._examples = examples

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {_WHICH: [], _OTHERS: []}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx) if isinstance(option, click.Option) else None
            if record is not None:
                group = _WHICH if option.name in _NAMES_OF_WHICH else _OTHERS
                groups[group].append(record)
        for name, records in groups.items():
            _write_list(formatter, name, records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        _write_examples(formatter, self._examples)


class HelpedGroup(click.Group):
    """A group whose commands are listed in sections, in the order in which one needs them."""

    def __init__(
        self,
        *args: Any,
        sections: Mapping[str, Sequence[str]],
        examples: Sequence[str] = (),
        **options: Any,
    ) -> None:
        """``sections`` names all commands."""
        super().__init__(*args, **options)
        self._sections = sections
        self._examples = examples

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in self._sections.values() for name in names]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # One width for all sections.
        longest = max(map(len, self.commands))
        limit = formatter.width - 6 - longest
        for title, names in self._sections.items():
            records = [
                (f"{name:{longest}}", self.commands[name].get_short_help_str(limit))
                for name in names
            ]
            _write_list(formatter, title, records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_examples(formatter, self._examples)
        super().format_epilog(ctx, formatter)


def _write_list(
    formatter: click.HelpFormatter, title: str, records: Sequence[tuple[str, str]]
) -> None:
    if records:
        with formatter.section(title):
            formatter.write_dl(records)


def _write_examples(formatter: click.HelpFormatter, examples: Iterable[str]) -> None:
    """Unwrapped: a wrapped line could not be pasted."""
    if lines := list(examples):
        with formatter.section("Examples"):
            for line in lines:
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")


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
