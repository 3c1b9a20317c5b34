"""pipeline.json: notes on a pipeline, for commands that do not have its settings.

It is in the folder of the pipeline's log and is written at each start, so that commands find a
pipeline by its name alone. It has no password. A pipeline itself uses only one note: the
publication that it began with, if its settings name none.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import SecretStr

from walflow.changelog.durable import disk_errors, write_atomically
from walflow.changelog.identity import BESIDE
from walflow.changelog.identity import NOTES as FILE
from walflow.config import Settings
from walflow.config.keys import field_at, section_at
from walflow.destinations.uris import same_place
from walflow.redaction import MASK, redacted
from walflow.serialization import from_dict, to_dict
from walflow.source.catalog.publication import chosen_publication
from walflow.source.connection import Session, redact, without_secrets
from walflow.stores import state_file

__all__ = [
    "FILE",
    "PipelineNotes",
    "default_logs",
    "find_pipelines",
    "note_stop",
    "pipelines_on_this_machine",
    "read_notes",
    "remove_notes",
    "with_chosen_publication",
    "write_notes",
]

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class PipelineNotes:
    name: str
    source: str
    """For people to read."""
    system: str
    """The source's system identifier and database, by which destinations tell sources apart."""
    destination: str
    """The source's URI, without secrets."""
    slot: str
    publication: str
    log: str
    """The folder at the time of writing."""
    begun: float
    """When it was started for the first time, as Unix time."""
    started: float
    stopped: float | None = None
    """When it last ended in order; None: it has not."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Its settings without secrets, nested as in a settings file."""
    left_out: tuple[str, ...] = ()
    """The settings that had a secret, with dots. (Of source.uri, only the password is missing.)"""

    def writes(self, system: str, destination: str) -> bool:
        """Whether the pipeline copies from this source to this destination."""
        return self.system == system and same_place(self.destination, destination)


def write_notes(settings: Settings, system: str) -> bool:
    """Write the notes of a pipeline that is being started. Its publication must be chosen already.
    Returns whether there were no notes before."""
    before = read_notes(settings.log_folder)
    if before is not None and before.name != settings.name:
        before = None
    said, left_out = _said(settings)
    now = time.time()
    _write(
        settings.log_folder,
        PipelineNotes(
            settings.name,
            redact(settings.source.uri.get_secret_value()),
            system,
            redacted(settings.destination.uri),
            settings.slot,
            settings.publication,
            str(settings.log_folder.absolute()),
            now if before is None else before.begun,
            now,
            None,
            said,
            left_out,
        ),
    )
    return before is None


def with_chosen_publication(
    connection: Session, settings: Settings, *, begun: bool = False
) -> Settings:
    """The settings with the pipeline's publication, if they name none. ``begun``: its store has
    tables."""
    if settings.source.publication is not None:
        return settings
    notes = read_notes(settings.log_folder)
    ours = notes is not None and notes.name == settings.name
    return settings.with_publication(
        chosen_publication(
            connection,
            settings.name,
            settings.slot,
            noted=notes.publication if notes is not None and ours else None,
            begun=begun,
        )
    )


def note_stop(folder: Path) -> None:
    """Note that the pipeline has ended in order."""
    if (notes := read_notes(folder)) is not None:
        _write(folder, replace(notes, stopped=time.time()))


def remove_notes(folder: Path) -> None:
    """Remove the notes. Repeats safely."""
    for name in BESIDE:
        (folder / name).unlink(missing_ok=True)


def read_notes(folder: Path) -> PipelineNotes | None:
    """The notes of the pipeline whose log is in the folder; None if there are none."""
    try:
        raw = json.loads((folder / FILE).read_bytes())
        if not isinstance(raw, dict) or raw.pop("format", None) != _FORMAT:
            return None
        notes = from_dict(PipelineNotes, raw)
        return replace(notes, settings=_usable(notes.settings))
    except (OSError, ValueError):
        # It is of help where it is there and whole; nothing may depend on it.
        return None


def find_pipelines(parents: Iterable[Path]) -> Iterator[tuple[Path, PipelineNotes]]:
    """The pipelines whose logs are in these folders, or one level below, with the logs' folders."""
    seen = set()
    for parent in parents:
        with suppress(OSError):
            for folder in (parent, *sorted(parent.iterdir())):
                resolved = folder.resolve()
                if resolved not in seen and (notes := read_notes(folder)) is not None:
                    seen.add(resolved)
                    yield folder, notes


def pipelines_on_this_machine(settings: Settings) -> Iterator[tuple[Path, PipelineNotes]]:
    """The pipelines that are found where this one's log is, and in the default folder."""
    return find_pipelines(dict.fromkeys((settings.log_folder.parent, default_logs())))


def default_logs() -> Path:
    """The folder of all logs, unless settings name another."""
    return Path.home() / ".walflow"


def _write(folder: Path, notes: PipelineNotes) -> None:
    content = json.dumps({"format": _FORMAT, **to_dict(notes)}, indent=2, ensure_ascii=False)
    with disk_errors(folder):
        write_atomically(folder / FILE, content.encode() + b"\n")


def _said(settings: Settings) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The settings without secrets, and the names of those that had one."""
    left_out: list[str] = []

    def cleaned(value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, Mapping):
            below = {key: cleaned(one, (*path, key)) for key, one in value.items()}
            return {key: one for key, one in below.items() if one is not None}
        if isinstance(value, SecretStr):
            value = value.get_secret_value()
        if path == ("source", "uri"):
            plain, had_some = without_secrets(value)
            left_out.extend([".".join(path)] if had_some else [])
            return plain
        text = value if isinstance(value, str) else ""
        if MASK in text or redacted(text) != text:
            left_out.append(".".join(path))
            return None
        return json.loads(json.dumps(value, default=str))

    said = settings.model_dump(by_alias=True, exclude_unset=True)
    if settings.store.uri is not None and (file := state_file(settings)) is not None:
        # Wherever the command is run.
        said["store"]["uri"] = f"sqlite:///{quote(str(file))}"
    # The URI has what this section says.
    said.get("source", {}).pop("tls", None)
    content = cleaned(said, ())
    return content, tuple(left_out)


def _usable(said: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Without unknown settings: another version of walflow may have written them."""
    kept = {}
    for key, value in said.items():
        below = (*path, key)
        if section_at(below) is not None and isinstance(value, Mapping):
            kept[key] = _usable(value, below)
        elif field_at(below) is not None:
            kept[key] = value
    return kept
