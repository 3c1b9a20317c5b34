"""Stores: where a pipeline's state is stored. ``open_store`` opens the one that the settings
name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from walflow.errors import BadUri, StoreError
from walflow.paths import is_foreign_path
from walflow.plugins import PYTHON, installed, load_object, made
from walflow.stores.base import Store

if TYPE_CHECKING:
    from walflow.config import Settings
    from walflow.stores.sql_database import Database

__all__ = [
    "STATE_FILE",
    "database_of",
    "is_own_store",
    "open_store",
    "state_file",
    "state_file_is_there",
]

STATE_FILE = "state.db"
"""The store in the change log's folder, where the settings name no other."""

_KINDS = ("sqlite", "postgresql", "postgres", "redis", "rediss", "unix", "memory", PYTHON)
_GROUP = "walflow.stores"
_HINT = (
    "Known are sqlite:///file (sqlite:////absolute/path/of/the/file), "
    "postgresql://user:password@host:port/database, redis://host:port/0, rediss://…, "
    "unix:///path/of/the/socket, memory: (forgotten when the process ends) and "
    "python:module:Class (your own)."
)


def open_store(settings: Settings) -> Store:
    """Open the pipeline's store, with its cache filled.

    Creates what is missing (folder, file, tables, schema), and migrates tables of an older version.
    Raises BadUri, StoreError (trying again may help) or StoreForeign.
    """
    if (database := database_of(settings)) is not None:
        from walflow.stores.sql import SqlStore

        return SqlStore(database, settings.name)
    assert settings.store.uri is not None
    uri = settings.store.uri.get_secret_value().strip()
    match uri.partition(":")[0].lower():
        case "redis" | "rediss" | "unix":
            return _open_redis(uri, settings)
        case "memory":
            from walflow.stores.memory import MemoryStore

            return MemoryStore(settings.name)
    if (own := _own_store(uri, settings)) is not None:
        return own
    # Only what looks like the beginning of a URI is shown: the rest may be a secret.
    kind = re.match(r"([a-z][a-z0-9+]{0,20})://", uri)
    shown = f"{kind[1]}://…" if kind else "in store.uri"
    raise BadUri(f"The store {shown} is of no known kind (known: {', '.join(_KINDS)}).", hint=_HINT)


def is_own_store(settings: Settings) -> bool:
    """Whether the settings name a store of the user's own."""
    if settings.store.uri is None:
        return False
    kind = settings.store.uri.get_secret_value().strip().partition(":")[0]
    return kind == PYTHON or (kind not in _KINDS and installed(_GROUP, kind) is not None)


def _own_store(uri: str, settings: Settings) -> Store | None:
    """A store of the user's own, for the pipeline of that name, with defaults for what it lacks."""
    from walflow.stores.own import check_calls, completed

    kind = uri.partition(":")[0]
    if kind == PYTHON:
        store = made(load_object(uri), "The store", settings.name, options={})
    elif (factory := installed(_GROUP, kind)) is not None:
        store = made(factory, "The store", settings.name, uri, options={})
    else:
        return None
    store = check_calls(store)
    return completed(store, settings.name, settings.log_folder)


def state_file(settings: Settings) -> Path | None:
    """The store's file. None if the store is not a file."""
    if settings.store.uri is None:
        return settings.log_folder / STATE_FILE
    uri = settings.store.uri.get_secret_value().strip()
    return _file_of(uri) if uri.lower().startswith("sqlite:") else None


def state_file_is_there(settings: Settings) -> bool:
    """Whether the store is a file that exists. StoreError if that cannot be seen."""
    if (file := state_file(settings)) is None:
        return False
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StoreError(
            f"the store {file} cannot be opened: {error.strerror}",
            hint="Name another folder (--log FOLDER, or store.uri), or give this user the right "
            "to see into that one.",
            retry=False,
        ) from error
    return True


def _file_of(uri: str) -> Path:
    """The path as SQLAlchemy writes it: three slashes and a relative path, or four and an absolute
    one."""
    parts = urlsplit(uri)
    path = unquote(parts.path[1:])
    if (
        not uri.lower().startswith("sqlite:///")
        or (parts.netloc or parts.query or parts.fragment or not path or path == ":memory:")
        or is_foreign_path(path.lstrip("/"))
    ):
        raise BadUri("The store's SQLite URI does not name a file.", hint=_HINT)
    return Path(path).expanduser().absolute()


# The libraries behind stores take their time to import, and a command needs at most one of them.


def database_of(settings: Settings) -> Database | None:
    """The store's database, not migrated. None if the store is not in one. For SQLite, creates the
    file's folder if it is missing."""
    if (file := state_file(settings)) is not None:
        from walflow.stores.sql_sqlite import SqliteDatabase

        return SqliteDatabase(file)
    assert settings.store.uri is not None
    uri = settings.store.uri.get_secret_value().strip()
    if uri.partition(":")[0].lower() not in ("postgresql", "postgres"):
        return None
    from walflow.stores.sql_postgres import PostgresDatabase

    return PostgresDatabase(uri, settings.store.postgres_schema)


def _open_redis(uri: str, settings: Settings) -> Store:
    from walflow.stores.redis import RedisStore

    return RedisStore(uri, settings.name, settings.store.redis_prefix)
