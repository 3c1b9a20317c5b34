"""A process that writes to a store so often, or (0) until it is killed.

    python -m tests.stores.writing_child URI TABLE WRITES

Each write writes twenty tables from TABLE on to a state whose ``rows_copied`` is the write's
number. It says the number when the write has returned.
"""

from __future__ import annotations

import itertools
import sys

from tests.stores.settings import settings
from walflow.model import Phase
from walflow.stores import open_store
from walflow.testing.store_samples import state_of

TABLES = 20


def main(uri: str, first_table: int, writes: int) -> None:
    store = open_store(settings(uri))
    for number in itertools.count(1):
        state = state_of(Phase.READY, number, rows_copied=number)
        tables = range(first_table, first_table + TABLES)
        store.update_table_replication_states(dict.fromkeys(tables, state))
        print(number, flush=True)
        if number == writes:
            break
    store.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
