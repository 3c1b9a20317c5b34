"""Operators' requests (retry, rollback, resync), from this process or through the store."""

from __future__ import annotations

from concurrent.futures import Future

import structlog

from walflow.errors import UnknownTable, WalflowError
from walflow.model import TableName
from walflow.pipeline.table_events import Asked
from walflow.pipeline.table_workers import TableWorkers
from walflow.stores.base import Action, Request, RequestStore

__all__ = ["Requests"]

_logger = structlog.get_logger(__name__)


class Requests:
    """Used by the coordinating thread, and by the one that ends the pipeline."""

    def __init__(self, store: RequestStore, workers: TableWorkers) -> None:
        self._store = store
        self._workers = workers
        self._asked: dict[str, tuple[Request, Future[str]]] = {}
        """Requests that were passed to a table's worker and are not answered yet."""

    def look(self) -> None:
        """Pass new requests to the tables' workers. A request that has to wait for a running job is
        answered at a later call."""
        for request in self._store.open_requests():
            if request.id in self._asked:
                continue
            outcome: Future[str] = Future()
            self._asked[request.id] = request, outcome
            try:
                self._ask(request.action, request.table, outcome)
            except UnknownTable as error:
                outcome.set_exception(error)
        self.answer()

    def _ask(self, action: Action, name: TableName, outcome: Future[str]) -> None:
        state = self._workers.tables.find(name)
        worker = None if state is None else self._workers.get(state.schema.oid)
        if worker is None:
            raise UnknownTable(
                f"The pipeline has no table {name}.", hint="`walflow status` lists its tables."
            )
        worker.post(Asked(action, outcome))

    def answer(self) -> None:
        """Store the answers that the workers have given so far."""
        for id, (request, outcome) in list(self._asked.items()):
            if not outcome.done():
                continue
            error = outcome.exception()
            if isinstance(error, WalflowError):
                hint = f" {error.hint}" if error.hint else ""
                self._store.finish_request(id, f"{error.message}{hint}", refused=True)
            else:
                answer = outcome.result()
                _logger.info("done as asked", action=request.action.value, outcome=answer)
                self._store.finish_request(id, answer)
            del self._asked[id]
