"""What operators ask for, from this process or through the store."""

from __future__ import annotations

import structlog

from walflow.errors import RequestRefused, UnknownTable, WalflowError
from walflow.model import Phase, TableName
from walflow.pasting import command_for
from walflow.pipeline.dispatcher import Dispatcher
from walflow.pipeline.publication.reconciler import PublicationReconciler
from walflow.pipeline.state.table_states import Tables, TableState
from walflow.states import RetryKind
from walflow.stores.base import Action, RequestStore

__all__ = ["Requests"]

_logger = structlog.get_logger(__name__)


class Requests:
    """Used by the coordinating thread."""

    def __init__(
        self,
        store: RequestStore,
        tables: Tables,
        dispatcher: Dispatcher,
        reconciler: PublicationReconciler,
    ) -> None:
        self._store = store
        self._tables = tables
        self._dispatcher = dispatcher
        self._reconciler = reconciler

    def look(self) -> None:
        """Do what was asked for. What has to wait for a table's job is done at a later call."""
        for request in self._store.open_requests():
            try:
                outcome = self._do(request.action, request.table)
            except WalflowError as error:
                hint = f" {error.hint}" if error.hint else ""
                self._store.finish_request(request.id, f"{error.message}{hint}", refused=True)
                continue
            if outcome is not None:
                _logger.info("done as asked", action=request.action.value, outcome=outcome)
                self._store.finish_request(request.id, outcome)

    def _do(self, action: Action, name: TableName) -> str | None:
        """What came of it; None if it has to wait."""
        state = self._tables.find(name)
        if state is None:
            raise UnknownTable(
                f"The pipeline has no table {name}.", hint="`walflow status` lists its tables."
            )
        match action:
            case Action.RETRY:
                return self._retry(state)
            case Action.ROLLBACK:
                return self._roll_back(state)
            case Action.RESYNC:
                return self._resync(state)

    def _retry(self, state: TableState) -> str | None:
        error = state.set_aside
        if error is None and state.error is not None:
            return f"{state.name} is being tried again already"
        if error is None:
            raise RequestRefused(
                f"{state.name} was not set aside: its phase is {state.phase}.",
                hint=f"To copy it again: `{command_for('resync', state.name)}`",
            )
        if error.retry.kind is RetryKind.NONE:
            raise RequestRefused(
                f"Trying {state.name} again cannot help: {error.hint}",
                hint=f"To copy it again: `{command_for('resync', state.name)}`",
            )
        if self._dispatcher.has(state.schema.oid):
            return None  # it failed just now
        after = self._reconciler.retry(state.schema.oid)
        return f"{state.name} is tried again from {after.phase}"

    def _roll_back(self, state: TableState) -> str | None:
        if not self._dispatcher.withdraw(state.schema.oid):
            return None
        after = self._reconciler.roll_back(state.schema.oid)
        if after.phase is Phase.ERRORED:
            return f"{state.name} is set aside again, as it was before"
        return f"{state.name} went back from {state.phase} to {after.phase}"

    def _resync(self, state: TableState) -> str | None:
        if not self._dispatcher.withdraw(state.schema.oid):
            return None
        self._reconciler.resync(state.schema.oid)
        return f"{state.name} is copied again"
