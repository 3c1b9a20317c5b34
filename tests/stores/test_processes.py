"""Several processes on one store, and processes that die."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import Database
from tests.stores.settings import settings
from tests.stores.writing_child import TABLES
from walflow.stores import open_store
from walflow.stores.base import Store


def start_writer(uri: str, first_table: int, moves: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.stores.writing_child"]
    return subprocess.Popen(
        [*command, uri, str(first_table), str(moves)], stdout=subprocess.PIPE, text=True
    )


@pytest.fixture(params=["sqlite", "postgresql"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/state.db"
    database: Database = request.getfixturevalue("database")
    return database.uri


@pytest.fixture
def store(uri: str) -> Iterator[Store]:
    opened = open_store(settings(uri))
    yield opened
    opened.close()


def test_what_a_killed_process_wrote_is_whole(uri: str, store: Store) -> None:
    for kill_after in (1, 7, 23):
        with start_writer(uri, 100, 0) as child:
            assert child.stdout is not None
            said = 0
            while said < kill_after:
                said = int(child.stdout.readline())
            child.kill()
            said = max([said, *(int(line) for line in child.stdout if line.endswith("\n"))])
        assert store.load_table_replication_states() == TABLES
        written = {state.rows_copied for state in store.get_table_replication_states().values()}
        assert len(written) == 1  # of a write all or nothing
        assert written.pop() in (said, said + 1)  # and no write that had returned is lost
        histories = [store.get_table_replication_history(100 + n) for n in range(TABLES)]
        assert all(history == histories[0] for history in histories)
        numbers = [state.rows_copied for state in histories[0]]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        for table in range(100, 100 + TABLES):
            store.cleanup_table_state(table)


def test_processes_that_open_a_new_store_at_once_share_it(uri: str) -> None:
    # The store does not exist yet: each of them may be the one that makes it.
    moves = 15
    children = [start_writer(uri, first, moves) for first in (100, 200, 300)]
    with closing(open_store(settings(uri))) as reader:
        for child in children:
            output, _ = child.communicate(timeout=120)
            assert child.returncode == 0
            assert output.split() == [str(n + 1) for n in range(moves)]
        assert reader.load_table_replication_states() == 3 * TABLES
        for first in (100, 200, 300):
            history = reader.get_table_replication_history(first)
            assert [state.rows_copied for state in history] == list(range(1, moves + 1))
