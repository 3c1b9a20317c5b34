"""Which store a URI opens, and what is said where it cannot."""

from __future__ import annotations

import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from tests.conftest import Database
from tests.stores.settings import settings
from walflow.changelog import LogIdentity
from walflow.changelog.identity import check_ours
from walflow.errors import BadUri, StoreError, StoreForeign
from walflow.model import Phase
from walflow.stores import open_store
from walflow.stores.memory import MemoryStore
from walflow.testing.store_samples import state_of


def write_and_read_again(uri: str | None, folder: Path) -> None:
    for step in range(2):
        store = open_store(settings(uri, folder=folder))
        assert len(store.get_table_replication_history(1)) == step
        store.update_table_replication_state(1, state_of(Phase.INIT, step))
        store.close()


def test_without_a_uri_the_store_is_in_the_logs_folder(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    write_and_read_again(None, folder)
    assert (folder / "state.db").is_file()


def test_the_log_can_be_made_beside_the_store(tmp_path: Path) -> None:
    store = open_store(settings(folder=tmp_path))
    store.update_table_replication_state(1, state_of(Phase.INIT))
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "state.db",
        "state.db-shm",
        "state.db-wal",
    ]
    check_ours(tmp_path, LogIdentity("shop", "7000", "walflow_shop"))
    store.close()


@pytest.mark.parametrize(
    ("uri", "file"),
    [
        ("sqlite:///state.db", "work/state.db"),
        ("SQLite:///a%20b/50%25.db", "work/a b/50%.db"),
        ("sqlite:///{tmp_path}/else/state.db", "else/state.db"),
        ("sqlite:///{tmp_path}/c:/state.db", "c:/state.db"),
    ],
)
def test_sqlite_uris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, file: str) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    write_and_read_again(uri.format(tmp_path=tmp_path), tmp_path / "log")
    assert (tmp_path / file).is_file()
    assert not (tmp_path / "log").exists()


def test_a_store_in_memory(tmp_path: Path) -> None:
    assert isinstance(open_store(settings("memory:", folder=tmp_path / "log")), MemoryStore)
    assert not (tmp_path / "log").exists()


def test_a_store_in_postgres_has_a_schema_of_its_own(database: Database, tmp_path: Path) -> None:
    write_and_read_again(database.uri, tmp_path / "log")
    query = "SELECT DISTINCT table_schema FROM information_schema.tables WHERE table_name = '{}'"
    for table in ("table_states", "leases", "walflow_version"):
        assert database.execute(query.format(table)) == [("walflow",)]
    store = open_store(settings(database.uri, postgres_schema='My "own"'))
    assert store.get_table_replication_states() == {}
    store.close()
    assert len(database.execute(query.format("leases"))) == 2


@pytest.mark.parametrize(
    "uri",
    [
        "mysql://u:hunter2@host/db",
        "hunter2",
        "hunter2:x",
        "iceberg:///hunter2",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite://hunter2/state.db",
        "sqlite:///state.db?key=hunter2",
        "sqlite:state.db#hunter2",
        "sqlite:/hunter2/state.db",
        "sqlite:///s3://hunter2/state.db",
        "sqlite:////s3://hunter2/state.db",
        "sqlite:///file:///hunter2/state.db",
        "sqlite:///C:/hunter2/state.db",
        "s3://hunter2/state.db",
        "postgresql://u:hunter2/x@host/db",
        "postgresql://u:hunter2@x@host:port/db",
        "postgresql://u:%hunter2@host/db",
        "postgresql://u@host/db?nonsense=hunter2",
    ],
)
def test_what_is_no_store_is_refused_without_its_secrets(uri: str) -> None:
    with pytest.raises(BadUri) as refused:
        open_store(settings(uri))
    shown = "".join(traceback.format_exception(refused.value)) + refused.value.hint
    assert "hunter2" not in shown
    assert "store" in refused.value.message
    assert "postgresql://user:password@host:port/database" in refused.value.hint


def test_an_unknown_kind_is_named_with_the_known_ones() -> None:
    with pytest.raises(BadUri, match=r"mysql://… .*sqlite, postgresql, .*redis") as refused:
        open_store(settings("mysql://host/db"))
    assert "memory:" in refused.value.hint


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    file.write_text("The quick brown fox jumps over the lazy dog. " * 100)
    with pytest.raises(StoreForeign, match="not a database") as refused:
        open_store(settings(f"sqlite:///{file}"))
    assert str(file) in refused.value.message
    assert file.read_text().startswith("The quick")


def test_a_place_where_no_file_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"Not a directory|exists") as refused:
        open_store(settings(f"sqlite:///{tmp_path}/file/state.db"))
    assert "folder" in refused.value.hint
    with pytest.raises(StoreError, match="unable to open"):
        open_store(settings(f"sqlite:///{tmp_path}"))


def test_what_a_store_needs_is_imported_when_it_is_opened() -> None:
    heavy = ("sqlalchemy", "alembic", "redis", "psycopg", "pydantic", "pytest")
    program = (
        "import sys, walflow.stores, walflow.stores.base\n"
        f"print(sorted(set({heavy!r}) & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("package", "statement", "expected"),
    [
        ("redis", "open_store(settings('redis://localhost'))", "pip install 'walflow[redis]'"),
        ("pytest", "import walflow.testing.stores", "pip install pytest"),
    ],
)
def test_a_missing_package_is_named(package: str, statement: str, expected: str) -> None:
    program = (
        f"import sys\nsys.modules[{package!r}] = None\n"
        "from tests.stores.settings import settings\nfrom walflow.stores import open_store\n"
        f"try:\n    {statement}\n"
        "except Exception as error:\n    print(error, getattr(error, 'hint', ''))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert expected in ran.stdout
