"""Which pipeline a command is for: the options that say so, and the settings that they make."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from walflow.cli.helping import setting
from walflow.errors import WalflowError

if TYPE_CHECKING:
    from walflow.config import Settings

__all__ = ["SETTINGS_EPILOG", "Chosen", "pipeline_options"]

SETTINGS_EPILOG = (
    "Every setting can be said on the command line (--set batch.max_fill_ms=100), in the "
    "environment (WALFLOW_BATCH__MAX_FILL_MS=100) or in FILE (batch: {max_fill_ms: 100}); the "
    "first of these wins."
)

_PATH = click.Path(path_type=Path)
_FILE_ARGUMENT = click.argument("file", required=False, type=_PATH, metavar="[FILE]")
_FILE_OPTION = click.option(
    "--file", "-f", "named_file", type=_PATH, metavar="FILE", help="Settings, as YAML."
)
_ENDS = (
    click.option(
        "--from",
        "source",
        metavar="URI",
        help=setting("source.uri", "The source: postgresql://user:password@host:port/database"),
    ),
    click.option(
        "--to",
        "destination",
        metavar="URI",
        help=setting(
            "destination.uri",
            "The destination: iceberg:///folder/of/the/tables, delta:///folder/of/the/tables, "
            "https://host/path or python:module:Class",
        ),
    ),
    click.option(
        "--publication",
        metavar="NAME",
        help=setting("source.publication", "Whose tables are followed.", "walflow"),
    ),
    click.option(
        "--slot",
        metavar="NAME",
        help=setting("source.slot", "The replication slot.", "walflow_<name>"),
    ),
)
_EVERYWHERE = (
    click.option("--name", metavar="NAME", help=setting("name", "The pipeline's name.", "default")),
    click.option(
        "--log",
        type=_PATH,
        metavar="FOLDER",
        help=setting("log.folder", "Where the change log is kept.", "~/.walflow/<name>"),
    ),
    click.option(
        "--set",
        "others",
        multiple=True,
        metavar="KEY=VALUE",
        help="Any other setting, such as batch.max_fill_ms=100. May be repeated.",
    ),
)
_PUBLISHING = (
    click.option(
        "--create-publication",
        is_flag=True,
        help=setting("source.create_publication", "Make the publication if there is none."),
    ),
    click.option(
        "--table",
        "included",
        multiple=True,
        metavar="PATTERN",
        help=setting(
            "tables.include",
            "Only tables like this, such as public.orders or 'public.*'. May be repeated.",
        ),
    ),
    click.option(
        "--exclude-table",
        "excluded",
        multiple=True,
        metavar="PATTERN",
        help=setting(
            "tables.exclude", "No tables like this, such as '*.audit_*'. May be repeated."
        ),
    ),
)
# Commands that only read and write the store open neither end. Empty, these cannot be opened by
# mistake, and stand in front of whatever the file or the environment say.
_NO_ENDS = {"source.uri": "", "destination.uri": ""}


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the command line says of the pipeline."""

    file: Path | None = None
    name: str | None = None
    log: Path | None = None
    others: Mapping[str, str] = field(default_factory=dict)
    ends: Mapping[str, Any] = field(default_factory=dict)
    """source.uri and the like, of commands that need them; None: nothing was said."""

    def settings(self, more: Mapping[str, Any] | None = None) -> Settings:
        """All settings; both ends must be named."""
        return self._load({**self.ends, **(more or {})})

    def store_settings(self) -> Settings:
        """Those by which the store is found. The ends' URIs are empty, named or not."""
        return self._load(_NO_ENDS)

    def _load(self, more: Mapping[str, Any]) -> Settings:
        from walflow.config import load_settings

        return load_settings(
            self.file, {"name": self.name, "log.folder": self.log, **more, **self.others}
        )

    @property
    def again(self) -> str:
        """What finds the same pipeline's store when it is put behind another command."""
        from walflow.redaction import redacted

        words: list[str] = []
        for option, value in (("--file", self.file), ("--name", self.name), ("--log", self.log)):
            words += [] if value is None else [option, str(value)]
        for key, value in self.others.items():
            if key in ("name", "log.folder") or key.startswith("store."):
                words += ["--set", f"{key}={redacted(value)}"]
        return shlex.join(words)

    def found_again(self, text: str) -> str:
        """The text, in which the commands find the same pipeline."""
        from walflow.pasting import with_options

        return with_options(text, self.again)


def pipeline_options(
    *, ends: bool, tables: bool = False, publishing: bool = False
) -> Callable[[Any], Any]:
    """Add the options, and hand what they say to the function as ``chosen``. Commands in the
    errors that the function raises get what finds the pipeline.

    ``ends``: with those for source and destination. ``tables``: arguments are tables, so the
    settings file cannot be the first of them, as elsewhere it can. ``publishing``: with those for
    a publication that may have to be made.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(
            *arguments: Any,
            file: Path | None = None,
            named_file: Path | None,
            name: str | None,
            log: Path | None,
            others: tuple[str, ...],
            source: str | None = None,
            destination: str | None = None,
            publication: str | None = None,
            slot: str | None = None,
            create_publication: bool = False,
            included: tuple[str, ...] = (),
            excluded: tuple[str, ...] = (),
            **more: Any,
        ) -> Any:
            named = {
                "source.uri": source,
                "destination.uri": destination,
                "source.publication": publication,
                "source.slot": slot,
                "source.create_publication": create_publication or None,
                "tables.include": included or None,
                "tables.exclude": excluded or None,
            }
            if file is not None and named_file is not None:
                raise click.UsageError("Give one FILE, with --file or without.")
            settings = dict(map(_key_and_value, others))
            chosen = Chosen(file or named_file, name, log, settings, named)
            try:
                return function(*arguments, chosen=chosen, **more)
            except WalflowError as error:
                error.message = chosen.found_again(error.message)
                error.hint = chosen.found_again(error.hint)
                raise

        options = [*(() if tables else (_FILE_ARGUMENT,)), _FILE_OPTION, *(_ENDS if ends else ())]
        for option in reversed([*options, *_EVERYWHERE, *(_PUBLISHING if publishing else ())]):
            call = option(call)
        return call

    return decorate


def _key_and_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.UsageError(
            f"--set takes KEY=VALUE, such as batch.max_fill_ms=100, not {key!r}."
        )
    return key.strip(), value
