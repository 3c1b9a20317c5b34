"""Faults on purpose: destinations that fail by a script, and places in walflow that do."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from walflow.destinations.base import Destination, Events
from walflow.errors import DestinationError
from walflow.evolution import Evolution
from walflow.failpoints import ScriptedFault, parse_faults, set_failpoints
from walflow.model import TableName, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["FaultyDestination", "failpoints"]


class FaultyDestination:
    """A destination that fails by a script, and otherwise does what the one inside does.

    ``FaultyDestination(inner, "write_events@2=lost; truncate_table[public.t]=fail")``: at every
    call, at the second only (``@2``), of one table only (``[public.t]``). ``fail``: nothing is
    done, and DestinationError is raised. ``lost``: it is done, and DestinationError is raised, as
    if the answer had got lost. ``sleep:s`` waits first. It offers what the one inside offers:
    also the calls that are optional.
    """

    def __init__(self, inner: Destination, script: str = "") -> None:
        self.inner = inner
        self.calls: list[tuple[str, TableName | None]] = []
        """What was called, and for which table (the first, if for several)."""
        self._faults: list[ScriptedFault] = []
        self._lock = threading.Lock()
        self.script(script)
        # As attributes of the object: so isinstance sees which protocols the one inside has.
        for name in dir(inner):
            if not name.startswith("_") and not hasattr(self, name):
                value = getattr(inner, name)
                wrapped = functools.partial(self._call, name, value) if callable(value) else value
                setattr(self, name, wrapped)

    @property
    def name(self) -> str:
        return self.inner.name

    def script(self, text: str) -> None:
        """Fail by this script from now on; an empty one ends all faults."""
        faults = parse_faults(text, "The script of faults", ("fail", "lost", "sleep"))
        with self._lock:
            self._faults = faults

    def truncate_table(self, table: TableSchema) -> None:
        self._call("truncate_table", self.inner.truncate_table, table)

    def write_table_rows(self, table: TableSchema, rows: DataFrame) -> None:
        self._call("write_table_rows", self.inner.write_table_rows, table, rows)

    def write_events(self, events: Events) -> None:
        self._call("write_events", self.inner.write_events, events)

    def _call(self, name: str, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        tables = _tables_of(args)
        with self._lock:
            self.calls.append((name, tables[0] if tables else None))
            faults = [fault for fault in self._faults if fault.name == name]
        struck = [fault for fault in faults if fault.strikes(*map(str, tables))]
        for fault in struck:
            if fault.action == "sleep":
                time.sleep(fault.seconds)
            if fault.action == "fail":
                raise DestinationError(f"{name} was told to fail")
        answer = call(*args, **options)
        if any(fault.action == "lost" for fault in struck):
            raise DestinationError(f"the answer of {name} was told to get lost")
        return answer


def _tables_of(args: tuple[Any, ...]) -> list[TableName]:
    match args:
        case (TableSchema() as table, *_):
            return [table.name]
        case (Events() as events, *_):
            return [changes.schema.name for changes in events.tables]
        case (Evolution() as way, *_):
            return [way.after.name]
    return []


@contextmanager
def failpoints(text: str) -> Iterator[None]:
    """Have walflow itself fail at these places while the block runs: see walflow.failpoints."""
    set_failpoints(text)
    try:
        yield
    finally:
        set_failpoints("")
