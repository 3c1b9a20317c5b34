"""Drops and renames the destination's tables when the source's tables are dropped or renamed."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace

import structlog

from walflow.destinations.base import Destination
from walflow.model import TableName
from walflow.pipeline.state.table_states import TableState

__all__ = ["Departures", "Renaming"]

_logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Renaming:
    name: TableName
    """The source's name of it."""
    destination: TableName
    job: Future[bool]

    @property
    def succeeded(self) -> bool:
        """After it has ended: whether the destination's table has the name."""
        if (error := self.job.exception()) is None:
            return self.job.result()
        _logger.warning(
            "the destination's table was not renamed", table=str(self.name), error=str(error)
        )
        return False


class Departures:
    """Runs slow calls of the destination in other threads. Used by one thread."""

    def __init__(self, destination: Destination, pool: Executor, *, drop_removed: bool) -> None:
        self._destination = destination
        self._pool = pool
        self._drop_removed = drop_removed
        self._drops: dict[int, Future[None]] = {}
        self._renamings: dict[int, Renaming] = {}

    @property
    def dropping(self) -> set[int]:
        """Oids of the tables that are being dropped."""
        return set(self._drops)

    def has(self, oid: int) -> bool:
        """Whether a drop or rename of the table is running."""
        return oid in self._drops or oid in self._renamings

    # Dropping.

    @property
    def drops(self) -> bool:
        """Whether tables that leave the publication are dropped in the destination."""
        return self._drop_removed and self._destination.capabilities.drops

    def drop(self, state: TableState) -> bool:
        """Have the destination's table dropped, if the settings say so. Returns False while that is
        running."""
        oid, destination = state.schema.oid, self._destination
        renaming = self._renamings.get(oid)
        if renaming is not None:
            if not renaming.job.done():
                return False
            del self._renamings[oid]
            if renaming.succeeded:
                state = replace(state, destination=renaming.destination)
        if oid not in self._drops:
            if not self.drops:
                return True
            self._drops[oid] = self._pool.submit(destination.drop, state.destination_schema)
        return not self.is_dropping(oid)

    def is_dropping(self, oid: int) -> bool:
        drop = self._drops.get(oid)
        if drop is None:
            return False
        if not drop.done():
            return True
        del self._drops[oid]
        if (error := drop.exception()) is not None:
            _logger.warning(
                "the destination's table was not dropped, and stays",
                table=oid,
                error=str(error),
                hint=getattr(error, "hint", ""),
            )
        return False

    # Renaming.

    def rename(self, state: TableState, name: TableName, destination: TableName) -> Renaming | None:
        """Have the destination's table renamed. None while that is running. Then its result, which
        may be that of an earlier call with other names."""
        oid = state.schema.oid
        if oid not in self._renamings:
            job = self._pool.submit(self._destination.rename, state.destination_schema, destination)
            self._renamings[oid] = Renaming(name, destination, job)
        return self._renamings.pop(oid) if self._renamings[oid].job.done() else None
