"""What Postgres's answer means when it refuses a command on the low-level connections."""

from __future__ import annotations

from psycopg import pq
from psycopg.pq.abc import PGresult

from walflow.errors import (
    ConnectionLost,
    NoFreeSlot,
    NoReplicationRight,
    NoSelectRight,
    SlotInUse,
    SlotLost,
    SourceError,
    WalLevelNotLogical,
)

__all__ = ["refusal"]

_BY_STATE: dict[str, type[SourceError]] = {
    "55006": SlotInUse,
    "53400": NoFreeSlot,
    "42704": SlotLost,
}


def refusal(result: PGresult | None, doing: str) -> SourceError:
    """The error for a command that Postgres did not carry out; ``doing`` completes "Could not"."""
    if result is None:
        return ConnectionLost(f"Could not {doing}: the server gave no answer.")
    text = " ".join(result.error_message.decode(errors="replace").split())
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    message = f"Could not {doing}: {text}"
    if not state or state.startswith(("57P", "08")):
        return ConnectionLost(message)
    if "wal_level" in text:
        return WalLevelNotLogical(message)
    if state == "42501":
        kind = NoReplicationRight if "replication" in text.lower() else NoSelectRight
        return kind(message)
    if state == "55000" and ("invalidated" in text or "can no longer" in text):
        return SlotLost(message)
    return _BY_STATE.get(state, SourceError)(message)
