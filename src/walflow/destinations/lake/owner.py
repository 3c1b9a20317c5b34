"""Whose a lake's tables are, and how far they are: what every commit of ours says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from walflow.errors import DestinationForeign
from walflow.model import Lsn

__all__ = ["OWN_NAMESPACE", "POSITION", "Owner", "Stamp", "check_owner", "is_owned"]

OWN_NAMESPACE = "_walflow"
"""Where a lake has tables that walflow keeps for itself, under a name that people can type."""
POSITION = "walflow.lsn"
"""Under this name a commit has the position that its table is at with it."""
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
        known = {_PIPELINE: self.pipeline, _SYSTEM: self.system}
        if self.timeline is not None:
            known["walflow.timeline"] = str(self.timeline)
        return known


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a commit says of itself."""

    owner: Owner
    position: Lsn

    @property
    def properties(self) -> dict[str, str]:
        return {**self.owner.properties, POSITION: str(self.position)}


def is_owned(owner: Owner, properties: Mapping[str, str]) -> bool:
    return (properties.get(_PIPELINE), properties.get(_SYSTEM)) == (owner.pipeline, owner.system)


def check_owner(identifier: str, owner: Owner, properties: Mapping[str, str]) -> None:
    """DestinationForeign unless the table with these properties is the owner's."""
    if is_owned(owner, properties):
        return
    pipeline = properties.get(_PIPELINE)
    hint = f"Use another folder or catalog, or remove the table: DROP TABLE {identifier};"
    if pipeline is None:
        whose = "was not made by walflow"
    elif pipeline != owner.pipeline:
        whose = f"belongs to the pipeline {pipeline!r}"
        if properties.get(_SYSTEM) == owner.system:
            hint = (
                f"If that is this pipeline under its former name, go on under it: `name: "
                f"{pipeline}` in the settings, or --name {pipeline}. Else use another folder or "
                "catalog, or other names for the tables (mapping.template). If nobody needs the "
                f"table: DROP TABLE {identifier};"
            )
    else:
        whose = f"was copied from another source ({properties.get(_SYSTEM)}, now {owner.system})"
    raise DestinationForeign(
        f"the table {identifier} exists and {whose}",
        hint=hint,
    )
