"""The lease on a pipeline: held while it runs, so that no other process runs it too."""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable

import structlog

from walflow.errors import LeaseLost, PipelineInUse, StoreError
from walflow.stores.base import Holder, Lease, LeaseStore, Report

__all__ = ["LeaseKeeper"]

LEASE_SECONDS = 15.0
_RENEW_SECONDS = 3.0
_POLL_SECONDS = 0.5

_ids: set[str] = set()
"""Of all holders that this process has been."""

_logger = structlog.get_logger(__name__)


class LeaseKeeper:
    """Renews the lease in a thread of its own, whatever else takes long."""

    def __init__(
        self,
        store: LeaseStore,
        report: Callable[[], Report | None],
        seconds: float = LEASE_SECONDS,
    ) -> None:
        self._store = store
        self._report = report
        self._seconds = seconds
        self._holder = Holder(str(uuid.uuid4()), socket.gethostname(), os.getpid())
        _ids.add(self._holder.id)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="walflow-lease", daemon=True)
        self.error: BaseException | None = None

    def acquire(self, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Take the pipeline and keep it. Raises PipelineInUse.

        A lease that a dead process has left is waited for, or taken at once if that process was
        on this machine.
        """
        deadline = time.monotonic() + self._seconds + 1
        first = self._store.get_lease()
        while True:
            try:
                self._store.acquire_lease(self._holder, self._seconds)
                break
            except PipelineInUse:
                lease = self._store.get_lease()
                if lease is not None and _died_here(lease.holder):
                    _logger.info("taking over from a process that has died", pid=lease.holder.pid)
                    self._store.release_lease(lease.holder)
                elif time.monotonic() > deadline or cancelled() or _is_alive(first, lease):
                    raise
                else:
                    time.sleep(_POLL_SECONDS)
        self._thread.start()

    def check(self) -> None:
        """Raise if the pipeline is no longer ours."""
        if self.error is not None:
            raise self.error

    def release(self) -> None:
        """Repeats safely."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        if self.error is None:
            self._store.release_lease(self._holder)

    def _run(self) -> None:
        renewed = time.monotonic()
        while not self._stop.wait(_RENEW_SECONDS):
            try:
                self._store.renew_lease(self._holder, self._seconds, self._report())
                renewed = time.monotonic()
            except LeaseLost as error:
                self.error = error
                return
            except StoreError as error:
                if time.monotonic() - renewed > self._seconds:
                    # By now another process may have taken it, in all rights.
                    self.error = error
                    return
                _logger.warning("the lease could not be renewed; trying again", error=str(error))


def _died_here(holder: Holder) -> bool:
    if holder.host != socket.gethostname():
        return False
    if holder.pid == os.getpid():
        # Of another pipeline object here, or of a container that had the same number.
        return holder.id not in _ids
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _is_alive(first: Lease | None, now: Lease | None) -> bool:
    """Whether the lease was renewed while we watched: its holder lives."""
    if first is None or now is None or first.holder != now.holder:
        return False
    return now.seconds_left > first.seconds_left
