"""Whose a lake's tables are, and how far they are: what every commit of ours says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from walflow.errors import DestinationForeign
from walflow.model import Lsn

__all__ = [
    "OWN_NAMESPACE",
    "POSITION",
    "SINCE",
    "Owner",
    "Place",
    "Stamp",
    "check_owner",
    "is_owned",
    "position_of",
]

OWN_NAMESPACE = "_walflow"
"""Where a lake has tables that walflow keeps for itself, under a name that people can type."""
POSITION = "walflow.lsn"
"""Under this name a commit has the position that its table is at with it."""
SINCE = "walflow.since"
"""And under this one the position that the table was at before it. A commit that was put on another
version than the one that it was made for shows itself by that."""
_PIPELINE = "walflow.pipeline"
_SYSTEM = "walflow.system"


@dataclass(frozen=True, slots=True)
class Owner:
    """The pipeline that tables belong to."""

    pipeline: str
    system: str
    """The source: its system identifier and database."""
    timeline: int | None = None

    @property
    def properties(self) -> dict[str, str]:
        properties = {_PIPELINE: self.pipeline, _SYSTEM: self.system}
        if self.timeline is not None:
            properties["walflow.timeline"] = str(self.timeline)
        return properties


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a commit says of itself."""

    owner: Owner
    position: Lsn
    since: Lsn | None = None
    """The position that the table is at before; None: whatever was there does not matter."""

    @property
    def properties(self) -> dict[str, str]:
        properties = {**self.owner.properties, POSITION: str(self.position)}
        return properties if self.since is None else {**properties, SINCE: str(self.since)}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a commit says that it has brought its table."""

    position: Lsn
    since: Lsn | None
    """See Stamp; None also in commits of former versions of walflow."""

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Self | None:
        """None: it is not a commit of ours."""
        if POSITION not in properties:
            return None
        since = properties.get(SINCE)
        return cls(Lsn.parse(properties[POSITION]), None if since is None else Lsn.parse(since))


def position_of(places: Iterable[Place | None]) -> Lsn | None:
    """The position of a table, by those of its commits that say one, the newest first; a None among
    them: nobody knows what it was before. None: it has no position, or one of its newest commits
    was put on another version than it was made for, and it may lack changes."""
    newest: Place | None = None
    made_for: Lsn | None = None
    has_moved = False
    for place in places:
        if place is None or not (newest is None or place.position == made_for):
            return None
        newest = newest or place
        # Down to what the newest commit that brought the table further was made for.
        if has_moved or place.since is None:
            break
        made_for, has_moved = place.since, place.since != place.position
    # What the oldest was made for may have expired.
    return None if newest is None else newest.position


def is_owned(owner: Owner, properties: Mapping[str, str]) -> bool:
    return (properties.get(_PIPELINE), properties.get(_SYSTEM)) == (owner.pipeline, owner.system)


def check_owner(identifier: str, owner: Owner, properties: Mapping[str, str]) -> None:
    """DestinationForeign unless the table with these properties is the owner's."""
    if is_owned(owner, properties):
        return
    pipeline = properties.get(_PIPELINE)
    hint = f"Use another folder or catalog, or remove the table: DROP TABLE {identifier};"
    if pipeline is None:
        whose = "was not created by walflow"
    elif pipeline != owner.pipeline:
        whose = f"belongs to the pipeline {pipeline!r}"
        if properties.get(_SYSTEM) == owner.system:
            hint = (
                f"If that is an earlier name of this pipeline, use it: `name: {pipeline}` in the "
                f"settings, or --name {pipeline}. Otherwise use another folder or catalog, or "
                "other names for the tables (mapping.template). If the table is not needed: DROP "
                f"TABLE {identifier};"
            )
    else:
        whose = f"was copied from another source ({properties.get(_SYSTEM)}, now {owner.system})"
    raise DestinationForeign(
        f"the table {identifier} exists and {whose}",
        hint=hint,
    )
