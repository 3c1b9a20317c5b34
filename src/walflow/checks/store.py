"""The store: whether it opens, and keeps what is written to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from pydantic import SecretStr

from walflow.checks.findings import Area, Facts, Finding, attempted, ok, skipped, warning
from walflow.checks.scratch import made_folder, scratch_id
from walflow.config import Settings
from walflow.errors import StoreError
from walflow.model import TableName
from walflow.pipeline.state.process_marks import is_held
from walflow.redaction import redacted
from walflow.stores import database_of, is_own_store, open_store, state_file, state_file_is_there

__all__ = ["check_store"]

_AREA = Area.STORE


def check_store(facts: Facts) -> Iterator[Finding]:
    yield from attempted(_AREA, "store", _store(facts.settings))


def _store(settings: Settings) -> Iterator[Finding]:
    shown, file = _shown(settings), state_file(settings)
    if _is_memory(settings):
        yield warning(
            _AREA,
            "store",
            "The store is the memory of the process: when that ends, the state is lost, and the "
            "next start asks the destination again how far each table is.",
            "Leave store.uri out to keep the state in the change log's folder.",
        )
    elif file is not None and not state_file_is_there(settings):
        _make_file(settings, file)
        yield ok(_AREA, "store", f"{shown} can be created")
    else:
        yield from _store_there(settings, shown)


def _make_file(settings: Settings, file: Path) -> None:
    """Create another file beside it, because a pipeline might be starting at this moment."""
    scratch = file.with_name(f".check-{scratch_id()}.db")
    store = settings.store.model_copy(update={"uri": SecretStr(f"sqlite:///{scratch}")})
    try:
        with made_folder(file.parent):
            try:
                _write(settings.model_copy(update={"store": store}))
            finally:
                for left in scratch.parent.glob(f"{scratch.name}*"):
                    left.unlink()
    except OSError as error:
        raise StoreError(
            f"The store {file} cannot be created: {error.strerror or error}.",
            hint="Name a folder that this user can write: --log FOLDER, or store.uri.",
        ) from error


def _store_there(settings: Settings, shown: str) -> Iterator[Finding]:
    database = database_of(settings)
    if database is not None:
        from walflow.stores.sql_tables import is_current, try_making

        with closing(database):
            current = is_current(database)
            if current is None:
                try_making(database)
                yield ok(_AREA, "store", f"{shown} can be created (this was rolled back)")
                return
        if not current:
            yield ok(_AREA, "store", f"{shown} has an older version; the next start upgrades it")
            return
    if is_own_store(settings):
        # To try it out, walflow would have to drop what it wrote, and cannot know what else an own
        # store does then.
        yield skipped(_AREA, "store", f"whether {shown} can be written: it is your own")
    else:
        _write(settings)
        yield ok(_AREA, "store", f"{shown} can be written")
    yield from _holder(settings)


def _write(settings: Settings) -> None:
    """Write the state of a pipeline that does not exist, and drop it again."""
    scratch = settings.model_copy(update={"name": f"check_{scratch_id()}"})
    table, name = 1, TableName("walflow", "check")
    with closing(open_store(scratch)) as store:
        try:
            store.store_table_mapping(table, name)
            store.load_table_mappings()
            if store.get_table_mapping(table) != name:
                raise StoreError(f"{_shown(settings)} does not return what was written to it")
        finally:
            store.drop()


def _holder(settings: Settings) -> Iterator[Finding]:
    with closing(open_store(settings)) as store:
        lease = store.get_lease()
    if lease is not None and is_held(lease):
        holder = lease.holder
        yield ok(
            _AREA,
            "running",
            f"the pipeline runs now (process {holder.pid} on {holder.host})",
        )


def _is_memory(settings: Settings) -> bool:
    uri = settings.store.uri
    return uri is not None and uri.get_secret_value().strip().startswith("memory:")


def _shown(settings: Settings) -> str:
    file, uri = state_file(settings), settings.store.uri
    if file is not None or uri is None:
        return f"the store {file}"
    return f"the store {redacted(uri.get_secret_value())}"
