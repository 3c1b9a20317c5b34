"""Warnings about things that work, but not as the operator may expect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from walflow.config import TablesSettings
from walflow.model import quote_identifier
from walflow.source.catalog.publication import Publication, identity_sql
from walflow.source.catalog.published_tables import PublishedTable

__all__ = ["Caution", "identity_cautions", "publication_cautions"]


@dataclass(frozen=True, slots=True)
class Caution:
    message: str
    hint: str = ""
    """What to do; may be empty."""

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


def publication_cautions(
    publication: Publication, tables: Sequence[PublishedTable], chosen: TablesSettings
) -> Iterator[Caution]:
    """Warnings about a publication and those of its tables that are chosen."""
    name = quote_identifier(publication.name)
    if not tables:
        which = " that tables.include and tables.exclude choose" if chosen.choose else ""
        yield Caution(
            f'The publication "{publication.name}" has no tables{which} yet.',
            f"To add some: ALTER PUBLICATION {name} ADD TABLE a, b;",
        )
    if publication.unpublished:
        kinds = ", ".join(f"{kind}s" for kind in publication.unpublished)
        yield Caution(
            f'The publication "{publication.name}" does not publish '
            f"{kinds}: the destination will differ from the source.",
            f"To change it: ALTER PUBLICATION {name} "
            "SET (publish = 'insert, update, delete, truncate');",
        )
    rooted = [str(table.name) for table in tables if table.partitioned and publication.via_root]
    if rooted:
        yield Caution(
            "Postgres does not publish TRUNCATE, DROP or DETACH of single partitions of "
            f"{', '.join(rooted)}: delete the rows instead, or copy the table again afterwards."
        )


def identity_cautions(
    publication: Publication, tables: Sequence[PublishedTable]
) -> Iterator[Caution]:
    """Warnings about tables whose updates and deletes Postgres refuses, because they are
    published."""
    if not publication.needs_identity:
        return
    without = [name for table in tables for name in table.without_identity]
    if without:
        yield Caution(
            "Postgres refuses updates and deletes of these tables, because they are published "
            f"and have no replica identity: {', '.join(map(str, without))}.",
            f"Give them primary keys, or run: {identity_sql(without)}",
        )
    for table in tables:
        if table.uncovered:
            yield Caution(
                f"Postgres refuses updates and deletes of {table.name}, because its column list "
                f"leaves out columns of its replica identity: {', '.join(table.uncovered)}."
            )
