"""Replica identities: the columns by which Postgres finds a row."""

from __future__ import annotations

from collections.abc import Sequence

from walflow.model import ReplicaIdentity
from walflow.source.connection import Session

__all__ = ["Identities"]

# Only what Postgres itself takes as an identity: valid, and checked at once.
_INDEXES = """
SELECT i.indrelid, i.indisprimary, i.indisreplident,
       ARRAY(SELECT k.attnum
               FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
              WHERE k.place <= i.indnkeyatts)
  FROM pg_index AS i
 WHERE i.indrelid = ANY(%s) AND (i.indisprimary OR i.indisreplident)
   AND i.indisvalid AND i.indimmediate
"""


class Identities:
    """Primary keys and identity indexes of some relations."""

    def __init__(self, connection: Session, oids: Sequence[int]) -> None:
        self._primary: dict[int, frozenset[int]] = {}
        self._chosen: dict[int, frozenset[int]] = {}
        for oid, primary, chosen, numbers in connection.execute(_INDEXES, [list(oids)]):
            if primary:
                self._primary[oid] = frozenset(numbers)
            if chosen:
                self._chosen[oid] = frozenset(numbers)

    def key(self, oid: int, identity: ReplicaIdentity) -> frozenset[int]:
        """The numbers of the identity's columns; those of the primary key where whole rows are
        logged."""
        match identity:
            case ReplicaIdentity.DEFAULT | ReplicaIdentity.FULL:
                return self._primary.get(oid, frozenset())
            case ReplicaIdentity.INDEX:
                return self._chosen.get(oid, frozenset())
            case ReplicaIdentity.NOTHING:
                return frozenset()

    def usable(self, oid: int, identity: ReplicaIdentity) -> bool:
        return identity is ReplicaIdentity.FULL or bool(self.key(oid, identity))
