"""Publications: reading what one publishes, and creating one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from walflow.config import TablesSettings
from walflow.errors import (
    ConfigError,
    NoReplicaIdentity,
    PublicationChanged,
    PublicationMissing,
    SlotLost,
)
from walflow.model import TableName, quote_identifier
from walflow.source.connection import Session, source_errors

__all__ = [
    "FORMER_NAME",
    "Publication",
    "brief_look",
    "chosen_publication",
    "create_publication",
    "drop_publication",
    "find_publication",
    "find_tables",
    "hand_over_publication",
    "identity_sql",
    "made_by_walflow",
    "other_users",
    "publication_loss",
    "publication_oids",
    "publication_sql",
    "read_publication",
    "require_identities",
    "require_tables",
    "tables_without_identity",
]


FORMER_NAME = "walflow"
"""The default name of every pipeline's publication, before each pipeline had its own."""


@dataclass(frozen=True, slots=True)
class Publication:
    name: str
    all_tables: bool
    insert: bool
    update: bool
    delete: bool
    truncate: bool
    via_root: bool
    """Whether changes of partitions appear as changes of the partitioned table."""
    version: str
    """The transaction that last changed what stands above. Adding and dropping tables and schemas
    does not change it; neither do comments, VACUUM (FREEZE or FULL), and setting the present owner
    again. A new owner or another name does change it: nothing distinguishes these cases."""

    @property
    def needs_identity(self) -> bool:
        """Whether Postgres refuses updates or deletes of tables without replica identity."""
        return self.update or self.delete

    @property
    def published(self) -> frozenset[str]:
        """The kinds of change that it publishes."""
        return frozenset(kind for kind, published in self._kinds.items() if published)

    @property
    def unpublished(self) -> tuple[str, ...]:
        """The kinds of change that it does not publish."""
        return tuple(kind for kind, published in self._kinds.items() if not published)

    @property
    def _kinds(self) -> dict[str, bool]:
        return {
            "insert": self.insert,
            "update": self.update,
            "delete": self.delete,
            "truncate": self.truncate,
        }


# Less than twice the server's deadlock_timeout (1 s): in a deadlock with an application that alters
# several tables, it is then we who give up.
_LOCK_TIMEOUT = "1500ms"
_GONE = re.compile(r"could not open relation|cache lookup failed", re.IGNORECASE)
_USABLE = (TransactionStatus.IDLE, TransactionStatus.INTRANS)


@contextmanager
def brief_look(connection: Session, doing: str) -> Iterator[None]:
    """Read tables that others may alter meanwhile. ``doing`` completes "Could not …".

    Does not wait long for a lock: raises ``TableLocked``. Raises ``PublicationChanged`` for a table
    that was just dropped. Both are worth another attempt.
    """
    with source_errors(doing):
        try:
            connection.execute(f"SET lock_timeout = '{_LOCK_TIMEOUT}'")
            yield
        except (psycopg.errors.UndefinedTable, psycopg.errors.DeadlockDetected) as error:
            raise _changed(doing, error) from error
        except psycopg.errors.InternalError_ as error:
            if _GONE.search(str(error)):
                raise _changed(doing, error) from error
            raise
        finally:
            # A session that is lost, or in a transaction that failed, has no need of it.
            if connection.info.transaction_status in _USABLE:
                connection.execute("RESET lock_timeout")


def _changed(doing: str, error: psycopg.Error) -> PublicationChanged:
    return PublicationChanged(
        f"Could not {doing}, because a table was altered meanwhile: {' '.join(str(error).split())}",
        hint="It is read again.",
    )


@source_errors("read the publication")
def find_publication(connection: Session, name: str) -> Publication | None:
    row = connection.execute(
        "SELECT pubname, puballtables, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot,"
        "       oid::text || ':' || xmin::text"
        "  FROM pg_publication WHERE pubname = %s",
        [name],
    ).fetchone()
    return None if row is None else Publication(*row)


def read_publication(connection: Session, name: str) -> Publication:
    """The publication. Raises ``PublicationMissing``."""
    found = find_publication(connection, name)
    if found is not None:
        return found
    with source_errors("list the publications"):
        others = connection.execute("SELECT pubname FROM pg_publication ORDER BY 1").fetchall()
    listed = ", ".join(other for (other,) in others) or "none"
    raise PublicationMissing(
        f'There is no publication "{name}" in database '
        f'"{connection.info.dbname}" (publications there: {listed}).',
        hint=f"Run: {publication_sql(name, ())}; (or FOR TABLE a, b instead of FOR ALL TABLES), "
        "or let walflow make it (--create-publication, source.create_publication: true)"
        + (", or follow one of those: --publication NAME." if others else "."),
    )


@source_errors("list the publications")
def publication_oids(connection: Session) -> frozenset[str]:
    """The oids of all publications."""
    return frozenset(oid for (oid,) in connection.execute("SELECT oid::text FROM pg_publication"))


def publication_loss(
    name: str, followed: Collection[str], existing: Collection[str]
) -> SlotLost | None:
    """Why changes are missing, if one of the publications in ``followed`` (oids) does not exist any
    more. ``name``: the publication in use, which was created again, or which the settings name now.

    No stream of a new publication has changes from before its creation: up to Postgres 17 the
    server refuses to read that part of its log, and later versions leave it out.
    """
    if set(followed) <= set(existing):
        return None
    return SlotLost(
        "The publication of this pipeline was dropped. Changes from before another one "
        f'("{name}") was created cannot be read any more.',
        hint="Let the pipeline make a new slot and copy all tables again "
        "(source.on_slot_lost: resync).",
    )


def publication_sql(name: str, tables: Sequence[TableName]) -> str:
    """The statement that creates the publication: for these tables, or for all if none are
    given."""
    what = "TABLE " + ", ".join(table.quoted for table in tables) if tables else "ALL TABLES"
    return (
        f"CREATE PUBLICATION {quote_identifier(name)} FOR {what}"
        " WITH (publish_via_partition_root = true)"
    )


def create_publication(
    connection: Session,
    name: str,
    tables: Sequence[TableName] = (),
    *,
    pipeline: str | None = None,
) -> Publication:
    """Create the publication for these tables (all, if none). An existing one of that name stays as
    it is.

    The comment of a new one says which pipeline it was created for (see ``made_by_walflow``).
    Raises ``NoReplicaIdentity`` instead of making Postgres refuse the application's updates.
    """
    found = find_publication(connection, name)
    if found is not None:
        return found
    require_identities(connection, tables)
    statement = publication_sql(name, tables)
    try:
        with connection.transaction():
            connection.execute(statement)
            if pipeline is not None:
                hand_over_publication(connection, name, pipeline)
    except psycopg.errors.DuplicateObject:
        pass
    except psycopg.errors.InsufficientPrivilege as error:
        raise PublicationMissing(
            f"The role may not create the publication: {' '.join(str(error).split())}.",
            hint=f"Let the tables' owner (for ALL TABLES a superuser) run: {statement};",
        ) from None
    except psycopg.Error:
        with source_errors(f'create publication "{name}"'):
            raise
    return read_publication(connection, name)


@source_errors("see which publication is the pipeline's")
def chosen_publication(
    connection: Session, pipeline: str, slot: str, *, noted: str | None = None, begun: bool = False
) -> str:
    """The publication of a pipeline whose settings name none.

    It is the one that the pipeline began with: it is ``noted`` beside the log, or found out. A
    pipeline that has ``begun`` (or has its slot) and has no notes began with FORMER_NAME. A new
    pipeline uses FORMER_NAME only if walflow did not create it: a publication of another pipeline
    is dropped with that pipeline.
    """
    if noted is not None:
        return noted
    own = f"{FORMER_NAME}_{pipeline}"
    comments: dict[str, str | None] = dict(
        connection.execute(
            "SELECT pubname::text, obj_description(oid, 'pg_publication') FROM pg_publication"
            " WHERE pubname = ANY(%s)",
            [[own, FORMER_NAME]],
        ).fetchall()
    )
    if own in comments:
        return own
    if not begun:
        row = connection.execute(
            "SELECT EXISTS (SELECT FROM pg_replication_slots"
            "  WHERE slot_name = %s AND database = current_database())",
            [slot],
        ).fetchone()
        begun = row is not None and row[0]
    if FORMER_NAME in comments:
        comment = comments[FORMER_NAME]
        if begun or comment == _made_for(pipeline) or not (comment or "").startswith(_MADE_FOR):
            return FORMER_NAME
    return FORMER_NAME if begun else own


@source_errors("see who else reads the publication")
def other_users(
    connection: Session, name: str, slot: str, publications: Mapping[str, str]
) -> tuple[str, ...]:
    """The slots of this database, other than ``slot``, whose readers use the publication, or may.

    Postgres does not store which publication a slot is for. ``publications`` has it for some slots,
    and a connected reader's query shows it. Any other slot may be for FORMER_NAME, which all
    pipelines once used, unless a publication has the slot's own name.
    """
    rows = connection.execute(
        "SELECT s.slot_name::text, coalesce(a.query, ''),"
        "       EXISTS (SELECT FROM pg_publication WHERE pubname = s.slot_name::text)"
        "  FROM pg_replication_slots AS s LEFT JOIN pg_stat_activity AS a ON a.pid = s.active_pid"
        " WHERE s.database = current_database() AND s.plugin = 'pgoutput' AND NOT s.temporary"
        "   AND s.slot_name <> %s ORDER BY 1",
        [slot],
    ).fetchall()
    users = []
    for other, query, has_own in rows:
        if other in publications:
            uses = publications[other] == name
        elif (asked_for := _PUBLICATION_NAMES.search(query)) is not None:
            uses = name in _identifiers(asked_for[1].replace("''", "'"))
        else:
            uses = name == FORMER_NAME and not has_own
        if uses:
            users.append(other)
    return tuple(users)


_PUBLICATION_NAMES = re.compile(r"publication_names\"?\s+'((?:[^']|'')*)'")
_IDENTIFIER = re.compile(r'"((?:[^"]|"")*)"|([^\s,"]+)')


def _identifiers(text: str) -> set[str]:
    """A list of names as Postgres reads it: names without quotes become lower case."""
    return {
        bare.lower() if bare else quoted.replace('""', '"')
        for quoted, bare in _IDENTIFIER.findall(text)
    }


@source_errors("see who made the publication")
def made_by_walflow(connection: Session, name: str, pipeline: str) -> bool:
    """Whether the publication exists, and walflow created it for this pipeline."""
    row = connection.execute(
        "SELECT obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = %s",
        [name],
    ).fetchone()
    return row is not None and row[0] == _made_for(pipeline)


def hand_over_publication(connection: Session, name: str, pipeline: str) -> None:
    """Note another pipeline as the publication's owner. That pipeline's ``drop`` then drops it."""
    with source_errors(f'comment on the publication "{name}"'):
        connection.execute(
            sql.SQL("COMMENT ON PUBLICATION {} IS {}").format(
                sql.Identifier(name), _made_for(pipeline)
            )
        )


def drop_publication(connection: Session, name: str) -> None:
    """Drop the publication, if it exists."""
    with source_errors(f'drop the publication "{name}"'):
        connection.execute(f"DROP PUBLICATION IF EXISTS {quote_identifier(name)}")


_MADE_FOR = "made by walflow for the pipeline "


def _made_for(pipeline: str) -> str:
    return f'{_MADE_FOR}"{pipeline}"'


# What FOR ALL TABLES would publish. Partitions come with the table that they belong to.
_TABLES = """
SELECT n.nspname, c.relname
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition
   AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND c.oid >= 16384
 ORDER BY 1, 2
"""


@source_errors("look up the tables")
def find_tables(connection: Session, chosen: TablesSettings) -> list[TableName]:
    """The chosen tables of the database, sorted by name."""
    tables = (TableName(*row) for row in connection.execute(_TABLES))
    return [table for table in tables if chosen.have(table)]


def require_tables(connection: Session, chosen: TablesSettings) -> list[TableName]:
    """The tables of ``find_tables``, for a publication. Raises ``ConfigError`` if a named table is
    missing, or if there is no table at all."""
    every = find_tables(connection, TablesSettings())
    names = [str(table) for table in every]
    for name in chosen.named:
        if name not in names:
            meant = get_close_matches(name, names, n=1)
            raise ConfigError(
                f"There is no table {name} in database {connection.info.dbname}.",
                hint=(f"Did you mean {meant[0]}? " if meant else "")
                + "Check tables.include: names are schema.table, case-sensitive; for a partition, "
                "name its parent.",
            )
    found = [table for table in every if chosen.have(table)]
    if not found:
        raise ConfigError(
            f"The database {connection.info.dbname} has none of the tables to publish.",
            hint="Check tables.include and tables.exclude.",
        )
    return found


_WITHOUT_IDENTITY = """
SELECT n.nspname, c.relname
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.relkind = 'r' AND c.relpersistence = 'p'
   AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND c.oid >= 16384
   AND (%(all)s OR c.oid IN (
         SELECT coalesce(t.relid, named) FROM unnest(%(names)s::text[]::regclass[]) AS named
           LEFT JOIN LATERAL pg_partition_tree(named) AS t ON true))
   AND c.relreplident <> 'f'
   AND NOT EXISTS (
         SELECT FROM pg_index AS i
          WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
            AND CASE c.relreplident WHEN 'd' THEN i.indisprimary
                                    WHEN 'i' THEN i.indisreplident ELSE false END)
 ORDER BY 1, 2
"""


@source_errors("read the tables' replica identities")
def tables_without_identity(
    connection: Session, tables: Sequence[TableName] = ()
) -> list[TableName]:
    """Which of these tables (of all, if none), partitions too, have no replica identity."""
    names = [table.quoted for table in tables]
    rows = connection.execute(_WITHOUT_IDENTITY, {"all": not names, "names": names}).fetchall()
    return [TableName(*row) for row in rows]


def require_identities(connection: Session, tables: Sequence[TableName] = ()) -> None:
    """Raise ``NoReplicaIdentity`` if publishing these tables (all, if none) would break them."""
    without = tables_without_identity(connection, tables)
    if without:
        raise NoReplicaIdentity(
            "Publishing these tables would make Postgres refuse their updates and deletes, "
            f"because they have no replica identity: {', '.join(map(str, without))}.",
            hint="Give them primary keys, or run: " + identity_sql(without),
        )


def identity_sql(tables: Sequence[TableName]) -> str:
    return " ".join(f"ALTER TABLE {table.quoted} REPLICA IDENTITY FULL;" for table in tables)
