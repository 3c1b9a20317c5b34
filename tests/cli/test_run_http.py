"""``walflow run pipeline.yaml`` into a web service: killed in the middle, gone on with, stopped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cli.commands import Room, ended
from tests.cli.stored import opened
from tests.conftest import Database
from tests.destinations.http_server import HttpTables, Received
from tests.pipeline.capturing import wait_for
from walflow.pipeline.state.phases import FOLLOWED

pytestmark = pytest.mark.spark

SECONDS = 400
TABLES = ("orders", "returns")


@pytest.fixture
def service() -> Iterator[HttpTables]:
    with HttpTables(secret="s3cret", token="t0ken") as service:
        yield service


@pytest.fixture
def shop(database: Database) -> Database:
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text, secret text)",
        "INSERT INTO orders SELECT n, 'note ' || n, 'x' FROM generate_series(1, 1000) n",
        "CREATE TABLE returns (id int PRIMARY KEY, note text)",
        "CREATE PUBLICATION shop FOR TABLE orders (id, note), returns",
    )
    return database


@pytest.fixture
def pipeline(shop: Database, service: HttpTables, room: Room) -> Path:
    # A role with no more rights than it needs.
    uri = shop.replicator(
        "GRANT SELECT (ctid, id, note) ON orders TO {role}", "GRANT SELECT ON returns TO {role}"
    )
    settings = {
        "name": "shop",
        "source": {"uri": uri, "publication": "shop", "slot": f"{shop.name}_slot"},
        "destination": {
            "uri": service.uri,
            "options": {"secret": "s3cret", "token": "t0ken", "batch_rows": 300},
        },
        "log": {"folder": str(room.path / "log")},
        "spark": {"driver_memory": "1g"},
    }
    path = room.path / "pipeline.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


class Held:
    """A request that the service keeps without an answer, until it is let go."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.let_go = threading.Event()
        self.key = ""

    def __call__(self, received: Received) -> bool:
        """As the service's ``lost``: the request counts, and who sent it does not learn of it."""
        if self.arrived.is_set() or kind_of(received) != "events":
            return False
        self.key = received.headers["Idempotency-Key"]
        self.arrived.set()
        self.let_go.wait(SECONDS)
        return True


def kind_of(received: Received) -> str | None:
    return None if received.body is None else received.body["kind"]


def keys(received: list[Received]) -> list[str]:
    return [one.headers["Idempotency-Key"] for one in received if kind_of(one) is not None]


def in_service(service: HttpTables) -> dict[str, dict[int, str | None]]:
    """The service's tables; a row that is there twice is a failure."""
    found: dict[str, dict[int, str | None]] = {}
    for (_, name), table in list(service.tables.items()):
        rows = [(row.values["id"], row.values["note"]) for row in list(table.rows)]
        found[name] = dict(rows)
        assert len(found[name]) == len(rows)
    return found


def in_source(shop: Database) -> dict[str, dict[int, str | None]]:
    return {name: dict(shop.execute(f"SELECT id, note FROM {name}")) for name in TABLES}


def is_noted(room: Room, table: str) -> bool:
    """Whether the table is known as copied."""
    with opened(room.path / "log") as store:
        states = store.get_table_replication_states().values()
        return any(state.table.name == table and state.phase in FOLLOWED for state in states)


def test_a_service_has_all_rows_whatever_becomes_of_the_command(
    shop: Database, service: HttpTables, room: Room, pipeline: Path
) -> None:
    held = Held()
    service.lost = held
    with ended(room.start("run", pipeline)) as process:
        wait_for(lambda: in_service(service) == in_source(shop), SECONDS, "the copy")
        with shop.connect() as connection, connection.transaction():
            connection.execute("UPDATE orders SET note = 'changed' WHERE id <= 50")
            connection.execute("DELETE FROM orders WHERE id > 990")
        wait_for(held.arrived.is_set, SECONDS, "the changes")
        # The service has all of the other table before walflow has noted that.
        wait_for(lambda: is_noted(room, "returns"), SECONDS, "the copy is noted")
        # The service has them, walflow does not know it.
        process.kill()
        process.wait(SECONDS)
    held.let_go.set()
    assert room.processes_after(90) == []
    before = len(service.received)
    assert in_service(service) == in_source(shop)
    shop.execute("INSERT INTO returns VALUES (1, 'while nobody looked')")

    with ended(room.start("run", pipeline)) as process:
        wait_for(lambda: in_service(service) == in_source(shop), SECONDS, "what happened meanwhile")
        shop.execute("INSERT INTO orders VALUES (2001, NULL)", "DELETE FROM orders WHERE id = 1")
        wait_for(lambda: in_service(service) == in_source(shop), SECONDS, "the last changes")
        process.terminate()
        _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    after = service.received[before:]
    # What had no answer came again under the key that it had; nothing was copied again.
    assert held.key in keys(after)
    assert {kind_of(one) for one in after} == {"events"}
