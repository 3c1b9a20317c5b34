"""The pipeline's lease, and the store for as long as the lease is ours."""

from __future__ import annotations

import functools
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import structlog
import tenacity

from walflow.errors import LeaseLost, PipelineInUse, StoreError
from walflow.pipeline.retrying import call_again
from walflow.pipeline.state.process_marks import has_died, is_alive, new_id
from walflow.pipeline.timing import Timing
from walflow.stores.base import Holder, Lease, LeaseStore, Report, Store

__all__ = ["LeaseKeeper", "held_store"]

_NOT_REPEATED = frozenset({"rollback_table_replication_state", "close"})
"""Calls that are not repeated: if only the answer was lost, the second call would do it twice."""

_logger = structlog.get_logger(__name__)


class LeaseKeeper:
    """Renews the lease in a thread of its own, whatever takes long elsewhere."""

    def __init__(
        self,
        store: LeaseStore,
        report: Callable[[], Report | None],
        lost: Callable[[BaseException], None] = lambda error: None,
        *,
        timing: Timing = Timing(),
    ) -> None:
        """``lost`` is called from that thread when another process has the pipeline."""
        self._store = store
        self._report = report
        self._lost = lost
        self._seconds = timing.lease
        self._interval = timing.lease_renewal
        self._poll = timing.lease_poll
        self._holder = Holder(new_id(), socket.gethostname(), os.getpid())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="walflow-lease", daemon=True)
        self._renewed = self._asked = 0.0
        self.error: BaseException | None = None

    def acquire(self, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Take the lease and keep it. Raises PipelineInUse. If a dead process has left a lease,
        waits until it runs out, or takes it at once if that process was on this machine."""
        deadline = time.monotonic() + self._seconds + 1
        before: Lease | None = None
        while True:
            self._renewed = time.monotonic()
            try:
                self._store.acquire_lease(self._holder, self._seconds)
                break
            except PipelineInUse:
                lease = self._store.get_lease()
                if lease is not None and has_died(lease.holder):
                    _logger.info("taking over from a process that has died", pid=lease.holder.pid)
                    self._store.release_lease(lease.holder)
                    continue
                if time.monotonic() > deadline or cancelled() or _lives(before, lease):
                    raise
                before = lease
                time.sleep(self._poll)
        self._thread.start()

    def check(self) -> None:
        """Raise if the pipeline is another process's, or may be by now."""
        if self.error is not None:
            raise self.error
        now = time.monotonic()
        if self._asked and now - self._asked > self._interval and self._is_overdue(now):
            raise StoreError(
                "the store has not answered for so long that another process may have taken the "
                "pipeline over"
            )

    def release(self) -> None:
        """Repeats safely."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        if self.error is not None:
            return
        try:
            self._store.release_lease(self._holder)
        except StoreError as error:
            _logger.warning(
                "the lease could not be released; it runs out by itself", error=str(error)
            )

    def _is_overdue(self, now: float) -> bool:
        return now - self._renewed > self._seconds

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                self._renew()
            except LeaseLost as error:
                self._give_up(error)
                return
            except StoreError as error:
                if not error.retry or self._is_overdue(time.monotonic()):
                    # By now another process may have taken it, in all rights.
                    self._give_up(error)
                    return
                _logger.warning("the lease could not be renewed; trying again", error=str(error))

    def _renew(self) -> None:
        # It runs from when the store was asked, at the earliest.
        self._asked = time.monotonic()
        try:
            self._store.renew_lease(self._holder, self._seconds, self._report())
            self._renewed = self._asked
        finally:
            self._asked = 0.0

    def _give_up(self, error: StoreError) -> None:
        self.error = error
        self._lost(error)


def _lives(before: Lease | None, now: Lease | None) -> bool:
    """Whether the holder lives: it runs on this machine, or renewed its lease while we waited."""
    if now is None:
        return False
    if is_alive(now.holder):
        return True
    renewed = before is not None and before.holder == now.holder
    return renewed and before is not None and now.seconds_left > before.seconds_left


def held_store(store: Store, lease: LeaseKeeper, stop: threading.Event, pause: float) -> Store:
    """The store, for as long as the lease is ours.

    While the store is away, calls wait for it, because no table is to blame. The lease limits how
    long. Once the lease is lost, every call raises, because the store's entries are another
    process's. ``pause``: seconds between attempts.
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
