"""Asking what is published, while tables are dropped, locked and altered."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from tests.conftest import Database
from tests.pipeline.capturing import wait_for
from tests.pipeline.running import WAIT
from walflow.config import TypeSettings
from walflow.errors import PublicationChanged, Stopped, TableLocked
from walflow.pipeline.publication.published import Published
from walflow.source.connection import Session, source_errors

WAITING = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock'"
)
ASLEEP = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event = 'PgSleep'"
)
SESSIONS = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name = 't catalog'"
)


@pytest.fixture
def source(any_database: Database) -> Database:
    any_database.execute(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE PUBLICATION walflow FOR ALL TABLES WITH (publish_via_partition_root)",
    )
    return any_database


@pytest.fixture
def published(source: Database) -> Iterator[Published]:
    with Published(source.uri, "t", "walflow", TypeSettings()) as published:
        yield published


def names(published: Published) -> list[str]:
    return [table.name.name for table in published.read()]


@pytest.mark.parametrize("table", ["a", "p1"])
def test_a_lock_is_not_waited_for_without_end(
    source: Database, published: Published, table: str
) -> None:
    fingerprint = published.fingerprint()
    with source.connect(autocommit=False) as other:
        other.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(TableLocked) as locked:
            published.read()
        assert locked.value.retry
        assert "pg_locks" in locked.value.hint
        # Which needs no table.
        assert published.fingerprint() == fingerprint
    assert names(published) == ["a", "p"]


def test_closing_ends_a_question_that_waits(source: Database, published: Published) -> None:
    @source_errors("sleep")
    def sleep(session: Session) -> None:
        session.execute("SELECT pg_sleep(600)")

    names(published)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(published._ask, sleep)
        wait_for(lambda: source.execute(ASLEEP) == [(1,)], WAIT)
        published.close()
        published.close()
        with pytest.raises(Stopped):
            answer.result(WAIT)
    with pytest.raises(Stopped):
        published.read()
    wait_for(lambda: source.execute(SESSIONS) == [(0,)], WAIT)


def test_the_log_of_an_idle_server_ends_where_its_stream_ends(
    source: Database, published: Published
) -> None:
    """Who waits for the stream to come further would wait until somebody writes."""
    segment = source.execute("SELECT pg_size_bytes(current_setting('wal_segment_size'))")[0][0]

    def ends_with_a_segment() -> bool:
        source.execute("SELECT pg_switch_wal()")
        return bool(published.news(None).ended % segment == 0)

    # More than once: the server itself writes a little now and then.
    wait_for(ends_with_a_segment, WAIT)


@pytest.mark.parametrize("table", ["a", "p1", "p"])
def test_a_table_that_is_dropped_while_it_is_looked_at(
    source: Database, published: Published, table: str
) -> None:
    names(published)
    with ThreadPoolExecutor(1) as pool:
        with source.connect(autocommit=False) as other:
            other.execute(f"DROP TABLE {table}")
            answer = pool.submit(names, published)
            wait_for(lambda: answer.done() or source.execute(WAITING) == [(1,)], WAIT)
        # Which are worth another look.
        with suppress(PublicationChanged, TableLocked):
            assert set(answer.result(WAIT)) <= {"a", "p"}
    assert names(published) == {"a": ["p"], "p1": ["a", "p"], "p": ["a"]}[table]


def test_a_session_that_was_ended_is_replaced(source: Database, published: Published) -> None:
    assert names(published) == ["a", "p"]
    source.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 't catalog'"
    )
    assert names(published) == ["a", "p"]
