"""Publications that walflow makes: known again as its own, and dropped."""

from __future__ import annotations

import psycopg
import pytest

from tests.conftest import Database
from walflow.errors import SourceError
from walflow.source.connection import connect
from walflow.source.publication import (
    create_publication,
    drop_publication,
    find_publication,
    made_by_walflow,
)

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
