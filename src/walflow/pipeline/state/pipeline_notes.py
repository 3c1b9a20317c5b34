"""pipeline.json: what is to be known of a pipeline where its settings are not at hand.

It stands in the folder of the pipeline's log and is written at each start, so that commands find a
pipeline by its name alone. No password is in it. Nothing that a pipeline does depends on it but
one thing: which publication it began with, if its settings do not say.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import SecretStr

from walflow.changelog.durable import disk_errors, write_atomically
from walflow.changelog.identity import BESIDE
from walflow.changelog.identity import KNOWN as FILE
from walflow.config import Settings
from walflow.config.keys import field_at, section_at
from walflow.destinations.uris import same_place
from walflow.redaction import MASK, redacted
from walflow.source.catalog.publication import chosen_publication
from walflow.source.connection import Session, redact, without_secrets
from walflow.stores import state_file

__all__ = [
    "FILE",
    "KnownPipeline",
    "default_logs",
    "forget",
    "known_pipelines",
    "pipelines_on_this_machine",
    "read_known",
    "remember",
    "settled",
    "stopped",
]

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class KnownPipeline:
    name: str
    source: str
    """For people to read."""
    system: str
    """The source's system identifier and database, by which destinations tell sources apart."""
    destination: str
    """Its URI, without secrets."""
    slot: str
    publication: str
    log: str
    """The folder, as it was when this was written."""
    begun: float
    """When it was started for the first time, as Unix time."""
    started: float
    stopped: float | None = None
    """When it ended in order; None: it has not, so far."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What was said of its settings, nested as in a settings file, but for secrets."""
    left_out: tuple[str, ...] = ()
    """The settings that had a secret in them, with dots. (Of source.uri, only that is missing.)"""

    def writes(self, system: str, destination: str) -> bool:
        """Whether this is where it takes its rows from, and where it brings them."""
        return self.system == system and same_place(self.destination, destination)


def remember(settings: Settings, system: str) -> bool:
    """Write down the pipeline that is being started; its publication must have been chosen.
    Whether it was not known before."""
    before = read_known(settings.log_folder)
    if before is not None and before.name != settings.name:
        before = None
    said, left_out = _said(settings)
    now = time.time()
    _write(
        settings.log_folder,
        KnownPipeline(
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


def settled(connection: Session, settings: Settings, *, begun: bool = False) -> Settings:
    """The settings with the publication of the pipeline, if they do not say it themselves.
    ``begun``: its store knows tables."""
    if settings.source.publication is not None:
        return settings
    known = read_known(settings.log_folder)
    ours = known is not None and known.name == settings.name
    return settings.with_publication(
        chosen_publication(
            connection,
            settings.name,
            settings.slot,
            noted=known.publication if known is not None and ours else None,
            begun=begun,
        )
    )


def stopped(folder: Path) -> None:
    """Note that the pipeline has ended in order."""
    if (known := read_known(folder)) is not None:
        _write(folder, replace(known, stopped=time.time()))


def forget(folder: Path) -> None:
    """Remove what stands beside the log. Repeats safely."""
    for name in BESIDE:
        (folder / name).unlink(missing_ok=True)


def read_known(folder: Path) -> KnownPipeline | None:
    """The pipeline whose log is in the folder; None if that is not known."""
    try:
        raw = json.loads((folder / FILE).read_bytes())
        if raw.pop("format") != _FORMAT:
            return None
        settings, left_out = _usable(raw.pop("settings")), tuple(raw.pop("left_out"))
        return KnownPipeline(**raw, settings=settings, left_out=left_out)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # It is of help where it is there and whole; nothing may depend on it.
        return None


def known_pipelines(parents: Iterable[Path]) -> Iterator[tuple[Path, KnownPipeline]]:
    """The pipelines whose logs lie in these folders, or one below, with the logs' folders."""
    seen = set()
    for parent in parents:
        with suppress(OSError):
            for folder in (parent, *sorted(parent.iterdir())):
                resolved = folder.resolve()
                if resolved not in seen and (known := read_known(folder)) is not None:
                    seen.add(resolved)
                    yield folder, known


def pipelines_on_this_machine(settings: Settings) -> Iterator[tuple[Path, KnownPipeline]]:
    """Those that can be known of: their logs are where this one's is, or where all are unless
    they are told otherwise."""
    return known_pipelines(dict.fromkeys((settings.log_folder.parent, default_logs())))


def default_logs() -> Path:
    """Below which a pipeline's log is unless its settings say otherwise."""
    return Path.home() / ".walflow"


def _write(folder: Path, known: KnownPipeline) -> None:
    content = json.dumps({"format": _FORMAT, **asdict(known)}, indent=2, ensure_ascii=False)
    with disk_errors(folder):
        write_atomically(folder / FILE, content.encode() + b"\n")


def _said(settings: Settings) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What was said, without secrets, and the settings that had some."""
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
    """Without what is no setting (any more): another version may have written it."""
    kept = {}
    for key, value in said.items():
        below = (*path, key)
        if section_at(below) is not None and isinstance(value, Mapping):
            kept[key] = _usable(value, below)
        elif field_at(below) is not None:
            kept[key] = value
    return kept
