"""Faults on purpose: destinations that fail by a script, and places in walflow that fail."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from walflow.destinations.base import TableChanges, TableCopy
from walflow.errors import DestinationError
from walflow.evolution import Evolution
from walflow.failpoints import ScriptedFault, parse_faults, set_failpoints
from walflow.model import TableName, TableSchema

if TYPE_CHECKING:
    pass

__all__ = ["FaultyDestination", "failpoints"]


class FaultyDestination:
    """A destination that fails by a script, and otherwise does what the inner one does.

    ``FaultyDestination(inner, "write_events@2=lost; truncate_table[public.t]=fail")``: at every
    call, only at the second (``@2``), only for one table (``[public.t]``). ``fail``: nothing is
    done, and DestinationError is raised. ``lost``: the call is done, and DestinationError is
    raised, as if the answer was lost. ``sleep:s`` waits first. It has the same optional calls as
    the inner one.
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, inner: Any, script: str = "") -> None:
        self.inner = inner
        self.calls: list[tuple[str, TableName | None]] = []
        """The calls so far, and their tables."""
        self._faults: list[ScriptedFault] = []
        self._lock = threading.Lock()
        self.script(script)
        # As attributes of the object: so it is seen which methods the one inside has.
        for name in dir(inner):
            if not name.startswith("_") and not hasattr(self, name):
                value = getattr(inner, name)
                wrapped = functools.partial(self._call, name, value) if callable(value) else value
                setattr(self, name, wrapped)

    @property
    def name(self) -> str:
        name: str = self.inner.name
        return name

    def script(self, text: str) -> None:
        """Fail by this script from now on. An empty one ends all faults."""
        faults = parse_faults(text, "The script of faults", ("fail", "lost", "sleep"))
        with self._lock:
            self._faults = faults

    def _call(self, name: str, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        table = _table_of(args)
        with self._lock:
            self.calls.append((name, table))
            faults = [fault for fault in self._faults if fault.name == name]
        named = () if table is None else (str(table),)
        struck = [fault for fault in faults if fault.strikes(*named)]
        for fault in struck:
            if fault.action == "sleep":
                time.sleep(fault.seconds)
            if fault.action == "fail":
                raise DestinationError(f"{name} was told to fail")
        answer = call(*args, **options)
        if any(fault.action == "lost" for fault in struck):
            raise DestinationError(f"the answer of {name} was told to get lost")
        return answer


def _table_of(args: tuple[Any, ...]) -> TableName | None:
    match args:
        case (TableSchema() as table, *_):
            return table.name
        case (TableChanges() | TableCopy() as given, *_):
            return given.schema.name
        case (Evolution() as way, *_):
            return way.after.name
    return None


@contextmanager
def failpoints(text: str) -> Iterator[None]:
    """Make walflow itself fail at these places while the block runs: see walflow.failpoints."""
    set_failpoints(text)
    try:
        yield
    finally:
        set_failpoints("")
