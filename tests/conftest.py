"""Real servers and fresh databases for every test that wants them."""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
import structlog
from hypothesis import settings

from tests.shared_classes import archive_classes
from walflow.errors import PostgresMissing
from walflow.model import quote_identifier
from walflow.spark.java import QUICK_START
from walflow.testing.postgres import EmbeddedPostgres

pytest_plugins = ["tests.spark_fixtures"]

# The same examples each time, so that a run fails for what was changed. With WALFLOW_TEST_EXAMPLES,
# which says how many some tests try, they are others.
settings.register_profile("walflow", derandomize="WALFLOW_TEST_EXAMPLES" not in os.environ)
settings.load_profile("walflow")

SUPPORTED_VERSIONS = (14, 15, 16, 17, 18)

_numbers = itertools.count(1)

# What several workers take up first: a long file that is begun last would be waited for by all.
LONG_FILES = (
    "lake/test_scenario.py",
    "lake/test_random.py",
    "pipeline/test_killing.py",
    "pipeline/test_resuming.py",
    "pipeline/test_evolution.py",
    "destinations/test_lake_evolution.py",
    "destinations/test_lake_modes.py",
    "destinations/test_contract.py",
    "lake/test_replays.py",
    "destinations/test_lake_batches.py",
    "pipeline/test_capture.py",
    "pipeline/test_replay.py",
    "pipeline/test_slots_in_pipelines.py",
    "pipeline/test_publication_changes.py",
    "spark/test_elsewhere.py",
    "demo/test_demo.py",
    "cli/test_run.py",
)
_WORKER_BYTES = 5 << 30
"""A worker has a Spark session and servers of its own, and runs commands that have theirs."""


# Tests are short: a JVM that does not optimize what it runs is up and done with less work. Spark's
# scripts hand these on, also to the JVMs of commands that a test runs. With -Xshare, no class
# archive is looked for in the user's cache folder, or made there.
JAVA_OPTIONS = {
    "SPARK_SUBMIT_OPTS": f"{QUICK_START} -Xshare:auto",
    "SPARK_LAUNCHER_OPTS": f"{QUICK_START} -XX:+UseSerialGC",
}


def pytest_configure(config: pytest.Config) -> None:
    for name, options in JAVA_OPTIONS.items():
        os.environ.setdefault(name, options)
    # Only where all tests run, which have many JVMs, and by who starts the workers.
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        folder = tempfile.mkdtemp(prefix="walflow-classes-")
        config.add_cleanup(lambda: shutil.rmtree(folder))
        archive_classes(Path(folder))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One a core: what tests start keeps the cores busy, and more would only slow all of them."""
    by_memory = psutil.virtual_memory().total // _WORKER_BYTES
    return max(1, min(os.cpu_count() or 1, by_memory))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        tests = config.rootpath / "tests"
        ranks = {tests / name: rank for rank, name in enumerate(LONG_FILES)}
        items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


@pytest.fixture(autouse=True)
def logs_of_this_test() -> Iterator[None]:
    """A command sends the logs to the stderr that it finds: in a test, one that is closed later."""
    root = logging.getLogger()
    before = set(root.handlers)
    yield
    structlog.reset_defaults()
    # Not those that pytest adds for each part of a test.
    for handler in set(root.handlers) - before:
        if type(handler).__module__.startswith("walflow."):
            root.removeHandler(handler)


@dataclass(frozen=True, slots=True)
class Database:
    """A fresh, empty database on a running server."""

    server: EmbeddedPostgres
    name: str

    @property
    def uri(self) -> str:
        return self.server.uri_for(self.name)

    def connect(self, **options: Any) -> psycopg.Connection[tuple[Any, ...]]:
        return self.server.connect(self.name, **options)

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run the statements one by one, each its own transaction; the last one's rows."""
        with self.connect() as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def replicator(self, *grants: str) -> str:
        """The URI of a new role with LOGIN and REPLICATION, and what the grants give it.

        In the grants, ``{role}`` stands for the role's quoted name. It goes with the database.
        """
        role = f"{self.name}_role_{next(_numbers)}"
        self.execute(
            f"CREATE ROLE {quote_identifier(role)} LOGIN REPLICATION PASSWORD 'p@ss:w/rd'",
            *(grant.format(role=quote_identifier(role)) for grant in grants),
        )
        return self.server.uri_for(self.name, user=role, password="p@ss:w/rd")


ServerFactory = Callable[[int | None], EmbeddedPostgres]


@pytest.fixture(scope="session")
def start_postgres() -> Iterator[ServerFactory]:
    """Gives the session's server of a version (None: the newest), started when first asked."""
    servers: dict[int, EmbeddedPostgres] = {}

    def start(version: int | None) -> EmbeddedPostgres:
        try:
            server = EmbeddedPostgres(version)
        except PostgresMissing as missing:
            if version is None:
                raise
            pytest.skip(f"{missing} {missing.hint}")
        if server.version not in servers:
            server.start()
            servers[server.version] = server
        started = servers[server.version]
        # A test that stopped the shared server must not fail the ones after it.
        started.start()
        return started

    yield start
    for server in servers.values():
        server.remove()


@pytest.fixture(scope="session")
def postgres(start_postgres: ServerFactory) -> EmbeddedPostgres:
    """The newest server on this machine, shared by the whole session."""
    return start_postgres(None)


# The quick tests run on the oldest and the newest, `make test-all` on those between them as well.
_VERSIONS = [
    pytest.param(
        version,
        id=f"postgres{version}",
        marks=()
        if version in (SUPPORTED_VERSIONS[0], SUPPORTED_VERSIONS[-1])
        else pytest.mark.long,
    )
    for version in SUPPORTED_VERSIONS
]


@pytest.fixture(params=_VERSIONS)
def any_postgres(request: pytest.FixtureRequest, start_postgres: ServerFactory) -> EmbeddedPostgres:
    """Each supported version in turn; versions that are missing here are skipped."""
    version: int = request.param
    return start_postgres(version)


@pytest.fixture
def database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """A fresh database on the newest server; it and its slots are dropped afterwards."""
    yield from fresh_database(postgres)


@pytest.fixture
def any_database(any_postgres: EmbeddedPostgres) -> Iterator[Database]:
    """A fresh database on each supported version in turn."""
    yield from fresh_database(any_postgres)


def fresh_database(server: EmbeddedPostgres) -> Iterator[Database]:
    """Make a database, hand it out, and drop it with its slots and roles."""
    name = f"walflow_{os.getpid()}_{next(_numbers)}"
    with server.connect() as connection:
        connection.execute(f"CREATE DATABASE {quote_identifier(name)}")
    yield Database(server, name)
    server.start()
    with server.connect() as connection:
        drop_database(connection, name)


def drop_database(connection: psycopg.Connection[tuple[Any, ...]], name: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = %s AND pid <> pg_backend_pid()",
            [name],
        )
        try:
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                " WHERE database = %s",
                [name],
            )
            connection.execute(f"DROP DATABASE {quote_identifier(name)} WITH (FORCE)")
            break
        except (psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
            # A walsender that was just told to end still holds its slot, or dropped it itself.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    for (role,) in connection.execute(
        "SELECT rolname FROM pg_roles WHERE starts_with(rolname, %s)", [name + "_role_"]
    ).fetchall():
        connection.execute(f"DROP ROLE {quote_identifier(role)}")
