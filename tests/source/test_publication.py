"""Publications that walflow makes: known again as its own, and dropped."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.conftest import Database
from walflow.errors import SourceError
from walflow.model import Lsn
from walflow.source.catalog.publication import (
    chosen_publication,
    create_publication,
    drop_publication,
    find_publication,
    made_by_walflow,
    other_users,
)
from walflow.source.connection import connect
from walflow.source.stream.replication_connection import Replication

NAME = 'Odd "name'
PIPELINE = "o'clock \\ 100%"


def test_a_publication_of_ours_is_known_again(any_database: Database) -> None:
    any_database.execute("CREATE PUBLICATION theirs")
    with connect(any_database.uri, application_name="t") as connection:
        assert not made_by_walflow(connection, NAME, PIPELINE)
        made = create_publication(connection, NAME, pipeline=PIPELINE)
        assert made_by_walflow(connection, NAME, PIPELINE)
        assert not made_by_walflow(connection, NAME, "another")
        assert create_publication(connection, NAME, pipeline="another") == made
        assert made_by_walflow(connection, NAME, PIPELINE)
        # What others made stays theirs, even if a pipeline asked for it.
        create_publication(connection, "theirs", pipeline=PIPELINE)
        assert not made_by_walflow(connection, "theirs", PIPELINE)
        drop_publication(connection, NAME)
        drop_publication(connection, NAME)
        assert find_publication(connection, NAME) is None
        assert find_publication(connection, "theirs") is not None


def test_only_its_owner_drops_a_publication(any_database: Database) -> None:
    any_database.execute("CREATE PUBLICATION theirs")
    with connect(any_database.replicator(), application_name="t") as connection:
        with pytest.raises(SourceError, match='drop the publication "theirs"'):
            drop_publication(connection, "theirs")
        assert connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE


def test_which_publication_a_pipeline_has_that_does_not_say_it(database: Database) -> None:
    slot = f"{database.name}_slot"
    with connect(database.uri, application_name="t") as connection:

        def chosen(**known: Any) -> str:
            return chosen_publication(connection, "shop", slot, **known)

        # A new pipeline has one of its own, or a general one that somebody has made for all.
        assert chosen() == "walflow_shop"
        connection.execute("CREATE PUBLICATION walflow")
        assert chosen() == "walflow"
        connection.execute("DROP PUBLICATION walflow")
        # It does not take one that goes with another pipeline.
        create_publication(connection, "walflow", pipeline="bi")
        assert chosen() == "walflow_shop"
        # One that began before pipelines had their own goes on with what it began with.
        assert chosen(begun=True) == "walflow"
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        assert chosen() == "walflow"
        connection.execute("DROP PUBLICATION walflow")
        assert chosen() == "walflow"
        connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])
        create_publication(connection, "walflow", pipeline="shop")
        assert chosen() == "walflow"
        # One that has its own does not look at others, and what was noted is what it is.
        create_publication(connection, "walflow_shop", pipeline="shop")
        assert chosen(begun=True) == "walflow_shop"
        assert chosen(begun=True, noted="mine") == "mine"


def test_who_else_reads_a_publication(database: Database) -> None:
    for slot in ("walflow_a", "walflow_b", "walflow_c", "debezium"):
        database.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    database.execute("CREATE PUBLICATION walflow", "CREATE PUBLICATION walflow_c")
    with connect(database.uri, application_name="t") as connection:

        def users(name: str, **known: str) -> tuple[str, ...]:
            return other_users(connection, name, "walflow_a", known)

        # Nobody can tell what debezium and walflow_b read; walflow_c has one of its own.
        assert users("walflow") == ("debezium", "walflow_b")
        assert users("walflow", walflow_b="walflow_b", debezium="mine") == ()
        assert users("walflow", walflow_c="walflow", debezium="walflow") == (
            "debezium",
            "walflow_b",
            "walflow_c",
        )
        # No pipeline comes to read another one but if it is told to.
        assert users("walflow_a") == ()
        assert users("walflow_a", walflow_b="walflow_a") == ("walflow_b",)
        # Who is connected says it.
        with Replication(database.uri, application_name="t") as replication:
            replication.start("debezium", Lsn(0), "walflow_a")
            assert users("walflow_a") == ("debezium",)
            assert users("walflow", walflow_b="walflow_b") == ()
