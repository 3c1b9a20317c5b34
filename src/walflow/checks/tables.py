"""The tables: what is published, whether it can be read, and how changes find their rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from walflow.checks.findings import Area, Facts, Finding, attempted, error, ok, skipped, warning
from walflow.checks.types import check_types
from walflow.errors import NoReplicaIdentity, NoSelectRight, TableLocked
from walflow.mapping import TableMapping, check_distinct
from walflow.model import PageRange, ReplicaIdentity, TableName
from walflow.pipeline.source_at_start import check_store_not_followed
from walflow.source.catalog.cautions import identity_cautions, publication_cautions
from walflow.source.catalog.publication import (
    brief_look,
    create_publication,
    find_publication,
    publication_sql,
    read_publication,
    require_tables,
)
from walflow.source.catalog.published_tables import (
    PublishedTable,
    published_tables,
    refused_reading,
)
from walflow.source.connection import Session, source_errors
from walflow.source.copy.ranges import range_query
from walflow.units import human_bytes, human_count

__all__ = ["check_tables"]

_AREA = Area.TABLES
_SHOWN = 20
"""With more tables than this, findings about single sound tables are details."""


def check_tables(facts: Facts) -> Iterator[Finding]:
    """Needs a session on the source."""
    session = facts.session
    if session is None:
        yield skipped(_AREA, "publication", "what is published: the source was not reached")
        return
    publication = list(attempted(_AREA, "publication", _publication(facts, session)))
    yield from publication
    if not facts.tables:
        return
    reported = any(finding.code == NoReplicaIdentity.__name__ for finding in publication)
    yield from attempted(_AREA, "rights", _rights(session, facts.tables))
    yield from attempted(_AREA, "replica identity", _identities(facts.tables, reported))
    yield from attempted(_AREA, "types", check_types(facts.tables, facts.settings.types))
    yield from attempted(_AREA, "names", _names(facts))


def _publication(facts: Facts, session: Session) -> Iterator[Finding]:
    source = facts.settings.source
    name = facts.settings.publication
    if find_publication(session, name) is not None:
        yield from _read(facts, session, "has")
    elif source.create_publication:
        yield from _would_be(facts, session)
    else:
        # Raises what to do.
        read_publication(session, name)


def _would_be(facts: Facts, session: Session) -> Iterator[Finding]:
    """Create the publication, read what it publishes, and roll it back."""
    settings = facts.settings
    name, chosen = settings.publication, settings.tables
    to_publish = require_tables(session, chosen) if chosen.choose else []
    with session.transaction(force_rollback=True):
        try:
            with brief_look(session, f'create publication "{name}"'):
                create_publication(session, name, to_publish, pipeline=settings.name)
        except NoReplicaIdentity as refusal:
            yield error(_AREA, "publication", refusal)
            with source_errors(f'create publication "{name}"'):
                session.execute(publication_sql(name, to_publish))
        else:
            yield ok(
                _AREA,
                "publication",
                f'the publication "{name}" can be created (this was rolled back)',
            )
        yield from _read(facts, session, "would have")


def _read(facts: Facts, session: Session, has: str) -> Iterator[Finding]:
    settings = facts.settings
    publication = read_publication(session, settings.publication)
    facts.tables = tuple(
        published_tables(session, publication.name, settings.types, chosen=settings.tables)
    )
    if facts.tables:
        count = f"{len(facts.tables)} table{'' if len(facts.tables) == 1 else 's'}"
        rows = sum(table.rows for table in facts.tables)
        size = sum(table.bytes for table in facts.tables)
        yield ok(
            _AREA,
            "publication",
            f'the publication "{publication.name}" {has} {count} to follow: about '
            f"{human_count(rows)} rows, {human_bytes(size)}",
        )
    for caution in publication_cautions(publication, facts.tables, settings.tables):
        yield warning(_AREA, "publication", caution.message, caution.hint)
    if settings.tables.choose:
        everything = published_tables(session, publication.name, settings.types)
        followed = {table.name for table in facts.tables}
        yield from _left_out(table for table in everything if table.name not in followed)
    for table in facts.tables:
        yield from _partly(table)
    check_store_not_followed(session, settings)


def _left_out(tables: Iterable[PublishedTable]) -> Iterator[Finding]:
    names = [str(table.name) for table in tables]
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        yield ok(
            _AREA,
            "left out",
            "published, but left out by tables.include and tables.exclude: "
            f"{', '.join(names[:_SHOWN])}{more}",
        )


def _partly(table: PublishedTable) -> Iterator[Finding]:
    """What the publication itself leaves out."""
    columns = len(table.schema.unpublished)
    parts = [f"only rows with {table.row_filter}"] if table.row_filter else []
    parts += [f"{columns} column{'' if columns == 1 else 's'} less"] if columns else []
    if parts:
        yield ok(_AREA, "left out", f"{table.name}: the publication has {' and '.join(parts)}")


def _rights(session: Session, tables: Sequence[PublishedTable]) -> Iterator[Finding]:
    # One error with one statement for all tables, rather than an error for each table.
    refusal = refused_reading(session, tables)
    if refusal is not None:
        yield error(_AREA, "rights", refusal)
    for table in tables:
        if table.problem is not None and not isinstance(table.problem, NoSelectRight):
            yield error(_AREA, "column names", table.problem)
    readable = [table for table in tables if table.problem is None]
    for table in readable:
        yield from attempted(_AREA, "rights", _reading(session, table))
    if readable:
        yield ok(_AREA, "rights", f"{_count(readable)} can be read")


def _reading(session: Session, table: PublishedTable) -> Iterator[Finding]:
    """Run the query of a copy without reading rows, which takes the same locks."""
    try:
        with brief_look(session, f"read {table.name}"):
            for part in table.relations:
                session.execute(f"{range_query(table, PageRange(part.oid, 1, 2))} LIMIT 0")
    except TableLocked as locked:
        yield warning(_AREA, "rights", locked.message, locked.hint)


def _identities(tables: Sequence[PublishedTable], reported: bool) -> Iterator[Finding]:
    """How updates and deletes find their rows. ``reported``: missing ones are reported already."""
    publication = tables[0].publication
    for caution in () if reported else identity_cautions(publication, tables):
        yield warning(_AREA, "replica identity", caution.message, caution.hint)
    if not publication.needs_identity:
        return
    sound = [table for table in tables if _finds_rows(table)]
    for table in sound:
        yield ok(
            _AREA,
            "replica identity",
            f"{table.name}: updates and deletes {_found_by(table)}",
            detail=len(tables) > _SHOWN,
        )
    if sound and len(tables) > _SHOWN:
        yield ok(_AREA, "replica identity", f"updates and deletes of {_count(sound)} are followed")


def _finds_rows(table: PublishedTable) -> bool:
    return not table.uncovered and not table.without_identity


def _found_by(table: PublishedTable) -> str:
    key = ", ".join(table.schema.key)
    match table.schema.replica_identity:
        case ReplicaIdentity.FULL if not key:
            return (
                "find rows by all their columns (REPLICA IDENTITY FULL, no primary key), which "
                "takes longer"
            )
        case ReplicaIdentity.FULL:
            return f"find rows by {key}; whole old rows are logged (REPLICA IDENTITY FULL)"
        case ReplicaIdentity.INDEX:
            return f"find rows by {key} (its replica identity)"
    return f"find rows by {key}"


def _names(facts: Facts) -> Iterator[Finding]:
    mapping = TableMapping(facts.settings.mapping)
    names: dict[TableName, TableName] = {
        table.name: mapping.destination(table.name) for table in facts.tables
    }
    check_distinct(names)
    others = {source: name for source, name in names.items() if source != name}
    for source, name in others.items():
        yield ok(_AREA, "names", f"{source} becomes {name}", detail=len(others) > _SHOWN)


def _count(tables: Sequence[PublishedTable]) -> str:
    return "the table" if len(tables) == 1 else f"{len(tables)} tables"
