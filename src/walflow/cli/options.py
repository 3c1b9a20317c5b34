"""The options that choose a pipeline, and the settings that result from them."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from walflow.cli.help_pages import setting
from walflow.errors import WalflowError

if TYPE_CHECKING:
    from walflow.config import Settings
    from walflow.pipeline.state.pipeline_notes import PipelineNotes

__all__ = ["SETTINGS_EPILOG", "Chosen", "key_and_value", "pipeline_options"]

SETTINGS_EPILOG = (
    "Every setting can be given on the command line (--set batch.max_fill_ms=100), in the "
    "environment (WALFLOW_BATCH__MAX_FILL_MS=100) or in FILE (batch: {max_fill_ms: 100}). The "
    "command line wins over the environment, and that over the file."
)

_PATH = click.Path(path_type=Path)
_FILE_ARGUMENT = click.argument("file", required=False, type=_PATH, metavar="[FILE]")
_FILE_OPTION = click.option(
    "--file",
    "-f",
    "named_file",
    type=_PATH,
    metavar="FILE",
    help="Settings, as YAML. Without --file, the argument that ends in .yaml or .yml.",
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
        help=setting(
            "source.publication",
            "The publication whose tables are followed.",
            "the one that the pipeline began with, walflow_<name> for a new one",
        ),
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
        help="Any other setting, such as batch.max_fill_ms=100. Can be repeated.",
    ),
)
_PUBLISHING = (
    click.option(
        "--create-publication",
        is_flag=True,
        help=setting("source.create_publication", "Create the publication if it does not exist."),
    ),
    click.option(
        "--table",
        "included",
        multiple=True,
        metavar="PATTERN",
        help=setting(
            "tables.include",
            "Only tables like this, such as public.orders or 'public.*'. Can be repeated.",
        ),
    ),
    click.option(
        "--exclude-table",
        "excluded",
        multiple=True,
        metavar="PATTERN",
        help=setting(
            "tables.exclude", "No tables like this, such as '*.audit_*'. Can be repeated."
        ),
    ),
)
# Commands that only use the store open neither source nor destination. Empty URIs cannot be opened
# by mistake, and override those of the file and the environment.
_NO_ENDS = {"source.uri": "", "destination.uri": ""}


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the command line says about the pipeline."""

    file: Path | None = None
    name: str | None = None
    log: Path | None = None
    others: Mapping[str, str] = field(default_factory=dict)
    ends: Mapping[str, Any] = field(default_factory=dict)
    """source.uri and the like, for commands that need them; None: not given."""

    def settings(self, more: Mapping[str, Any] | None = None) -> Settings:
        """All settings; source and destination must be given."""
        return self._load({**self.ends, **(more or {})})

    def store_settings(self) -> Settings:
        """The settings that find the store. The URIs of source and destination are empty."""
        return self._noted_settings(_NO_ENDS)

    def noted_settings(self, *, source: bool = True) -> Settings:
        """All settings of a pipeline that has run. Settings that are not given are taken from its
        last start. Without ``source``, the source's URI is empty unless --from gives it; the
        file's is not used, because it may name variables that are not set."""
        ends = dict(self.ends)
        if not source and ends["source.uri"] is None:
            ends["source.uri"] = ""
        return self._noted_settings(ends)

    def _noted_settings(self, more: Mapping[str, Any]) -> Settings:
        from walflow.errors import ConfigError

        notes = self.notes
        noted = {} if notes is None else dict(notes.settings)
        if notes is not None and "destination.uri" in notes.left_out:
            # So that `check_complete` reports it, rather than as a setting that was never given.
            noted["destination"] = {"uri": "", **noted.get("destination", {})}
        try:
            settings = self._load(more, noted)
        except ConfigError as error:
            if self.file is None and notes is None and not any(more.values()):
                raise self._unknown(error) from None
            raise
        if notes is not None and "store.uri" in notes.left_out and settings.store.uri is None:
            raise ConfigError(
                f"The state of the pipeline {notes.name} is in a store whose URI has a secret, and "
                "walflow stores no secrets.",
                hint="Name the pipeline's settings file, or give --set store.uri=… or "
                "WALFLOW_STORE__URI.",
            )
        return settings

    def check_complete(self, settings: Settings, *, otherwise: str = "") -> None:
        """ConfigError if settings of the destination or Spark have secrets, which were not noted,
        and are not given now. ``otherwise``: what else the user can do."""
        from walflow.errors import ConfigError

        notes = self.notes
        if notes is None:
            return
        said = set(_dotted(settings.model_dump(by_alias=True, exclude_unset=True)))
        needed = [one for one in notes.left_out if one.startswith(("destination.", "spark."))]
        if missing := [one for one in needed if one not in said]:
            raise ConfigError(
                f"The pipeline {notes.name} was given {', '.join(missing)} with a secret, and "
                "walflow stores no secrets.",
                hint=f"Name the pipeline's settings file, which has it.{otherwise}",
            )

    def _load(self, more: Mapping[str, Any], noted: Mapping[str, Any] | None = None) -> Settings:
        from walflow.config import load_settings

        said = {"name": self.name, "log.folder": self.log, **more, **self.others}
        return load_settings(self.file, said, noted=noted)

    @property
    def notes(self) -> PipelineNotes | None:
        """What was noted at the pipeline's last start. None with a file, which has all settings."""
        from walflow.pipeline.state.pipeline_notes import read_notes

        if self.file is not None:
            return None
        # Only the name and the folder are needed; source and destination are not known yet.
        asked = self._load(_NO_ENDS)
        found = read_notes(asked.log_folder)
        is_named = "name" in asked.model_fields_set
        if found is None or (is_named and found.name != asked.name):
            return None
        settings = {**found.settings, "name": found.name}
        return replace(found, settings=settings)

    def _unknown(self, error: WalflowError) -> WalflowError:
        """An error that says that the pipeline is unknown, not which settings are missing."""
        from walflow.errors import ConfigError
        from walflow.pipeline.state.pipeline_notes import pipelines_on_this_machine

        asked = self._load(_NO_ENDS)
        names = [notes.name for _, notes in pipelines_on_this_machine(asked)]
        there = f"Known here are {', '.join(names)} (`walflow list`). " if names else ""
        return ConfigError(
            f"No pipeline {asked.name} is known here: {asked.log_folder} has none. {error.message}",
            hint=f"{there}Name the pipeline: with FILE, --name or --log.",
        )

    @property
    def again(self) -> str:
        """The options with which another command finds the same pipeline's store."""
        from walflow.redaction import redacted

        words: list[str] = []
        for option, value in (("--file", self.file), ("--name", self.name), ("--log", self.log)):
            words += [] if value is None else [option, str(value)]
        for key, value in self.others.items():
            if key in ("name", "log.folder") or key.startswith("store."):
                words += ["--set", f"{key}={redacted(value)}"]
        return shlex.join(words)

    def found_again(self, text: str) -> str:
        """The text, with these options added to its commands."""
        from walflow.pasting import with_options

        return with_options(text, self.again)


def pipeline_options(
    *, ends: bool, words: str = "", publishing: bool = False
) -> Callable[[Any], Any]:
    """Add the options, and pass them to the function as ``chosen``. Commands in the errors that
    the function raises get the options that find the pipeline.

    ``ends``: with options for source and destination. ``words``: the name of the tuple of the
    command's own arguments; a settings file among them is taken out. ``publishing``: with options
    for a publication that may have to be created.
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
            files = [one for one in (file, named_file) if one is not None]
            if words:
                files += [Path(word) for word in more[words] if _is_file(word)]
                more[words] = tuple(word for word in more[words] if not _is_file(word))
            if len(files) > 1:
                raise click.UsageError("Give one FILE, with --file or without.")
            settings = dict(map(key_and_value, others))
            chosen = Chosen(next(iter(files), None), name, log, settings, named)
            try:
                return function(*arguments, chosen=chosen, **more)
            except WalflowError as error:
                error.message = chosen.found_again(error.message)
                error.hint = chosen.found_again(error.hint)
                raise

        options = [*(() if words else (_FILE_ARGUMENT,)), _FILE_OPTION, *(_ENDS if ends else ())]
        for option in reversed([*options, *_EVERYWHERE, *(_PUBLISHING if publishing else ())]):
            call = option(call)
        return call

    return decorate


def _dotted(values: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """The dotted names of all settings that are given and not empty."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{at}{key}.")
        elif value not in ("", None):
            yield f"{at}{key}"


def _is_file(word: str) -> bool:
    """Whether the argument is the settings file, and not a table or a position. (Quote the name of
    a table that looks like a file: '"public"."yaml"'.)"""
    return word.lower().endswith((".yaml", ".yml"))


def key_and_value(text: str) -> tuple[str, str]:
    """What ``--set`` was given."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.UsageError(
            f"--set takes KEY=VALUE, such as batch.max_fill_ms=100, not {key!r}."
        )
    return key.strip(), value
