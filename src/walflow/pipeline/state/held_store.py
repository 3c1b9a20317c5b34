"""The store as the parts of a running pipeline see it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, cast

import structlog
import tenacity

from walflow.errors import StoreError
from walflow.pipeline.retrying import call_again
from walflow.pipeline.state.lease import LeaseKeeper
from walflow.stores.base import Store

__all__ = ["held_store"]

_NOT_REPEATED = frozenset({"rollback_table_replication_state", "close"})
"""An answer that got lost would make the second time do it twice."""

_logger = structlog.get_logger(__name__)


def held_store(store: Store, lease: LeaseKeeper, stop: threading.Event, pause: float) -> Store:
    """The store, for as long as the lease is ours.

    While the store is away, calls wait for it: no table is to blame. The lease says how long that
    may last. Once that is lost, every call raises: what is
    in the store is another process's. ``pause``: seconds before it is asked again.
    """
    return cast("Store", _HeldStore(store, lease, stop, pause))


class _HeldStore:
    def __init__(
        self, store: Store, lease: LeaseKeeper, stop: threading.Event, pause: float
    ) -> None:
        self._store = store
        self._lease = lease
        self._stop = stop
        self._pause = pause

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._store, name)
        return functools.partial(self._call, name, call)

    def _call(self, name: str, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        def ask() -> Any:
            self._lease.check()
            return call(*args, **options)

        return call_again(
            ask,
            stop=self._stop,
            can_retry=lambda error: (
                isinstance(error, StoreError) and error.retry and name not in _NOT_REPEATED
            ),
            wait=tenacity.wait_fixed(self._pause),
            tell=_tell,
        )


def _tell(error: BaseException, attempt: int, seconds: float) -> None:
    _logger.warning("the store does not answer; trying again", error=str(error))
