"""Schemas and states with everything that a store must preserve."""

from __future__ import annotations

from typing import Any

from walflow.model import Column, Lsn, PgType, Phase, ReplicaIdentity, TableName, TableSchema
from walflow.states import (
    Membership,
    RetryKind,
    RetryPolicy,
    Storage,
    TableError,
    TableReplicationState,
)

__all__ = ["ERRORED", "ITEMS", "ORDERS", "SCHEMA", "SINCE", "WAY", "state_of"]

ORDERS, ITEMS = 16384, 16385
SINCE = 1_763_000_000.25

_INT = PgType("integer", 23, 23)
_TAGS = PgType("mood[]", 16501, 16501, element=PgType("mood", 16500, 25), delimiter=";")
SCHEMA = TableSchema(
    oid=ORDERS,
    name=TableName("public", 'the "orders"'),
    columns=(
        Column("id", _INT, "int", nullable=False, attnum=1),
        Column("größe", _TAGS, "array<string>", attnum=3),
    ),
    key=("id",),
    replica_identity=ReplicaIdentity.FULL,
    version=Lsn.parse("16/B374D848"),
)
ERRORED = TableReplicationState(
    table=TableName("shop", "orders"),
    phase=Phase.ERRORED,
    since=SINCE + 0.1,
    position=Lsn.parse("16/B374D848"),
    rows_expected=1_100_000_000,
    rows_copied=1_000_000_007,
    copy_seconds=61.5,
    changes_applied=12,
    attempts=3,
    error=TableError(
        code="DestinationError",
        reason="no \x00 space\nleft ä 'disk' \"full\" {0} %s :x",
        hint="Free some.",
        retry=RetryPolicy(RetryKind.TIMED, at=SINCE + 10.125),
        phase=Phase.CATCHUP,
    ),
    membership=Membership(
        entries=frozenset({"table 16384", "schema 2200"}),
        row_filter="(price > 0)",
        kinds=frozenset({"insert", "update"}),
        publication="16385:740",
        relations=frozenset({(16384, 0), (16390, 751)}),
        came_empty=frozenset({16390}),
        files=frozenset(
            {Storage(16384, 16401, 16387, 0, -(2**63)), Storage(16390, 16390, 0, 9, 7)}
        ),
        types=frozenset({(16402, "16403:ä 'low' \"x\""), (16402, "16404:"), (16410, "1:23:-1")}),
    ),
    schema_version=Lsn.parse("16/B374D800"),
    changing=True,
)


def state_of(phase: Phase, step: int = 0, **values: Any) -> TableReplicationState:
    return TableReplicationState(TableName("shop", "orders"), phase, SINCE + step, **values)


WAY = [state_of(phase, step) for step, phase in enumerate(list(Phase)[:4])]
