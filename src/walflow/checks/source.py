"""The source: whether it can be reached and followed, and whether a slot on it survives."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from walflow.checks.findings import Area, Facts, Finding, attempted, ok, skipped, warning
from walflow.checks.scratch import scratch_id
from walflow.errors import NoFreeSender, NoFreeSlot, SlotInUse, SourceError
from walflow.pipeline.state.pipeline_notes import with_chosen_publication
from walflow.source.catalog.preflight import check_server
from walflow.source.catalog.server import Server, read_server
from walflow.source.connection import Session, connect, source_errors
from walflow.source.stream.replication_connection import Replication
from walflow.source.stream.slots import (
    SlotState,
    check_slot,
    read_retention,
    read_slot,
    require_failover,
    slot_loss,
)
from walflow.units import human_bytes, human_seconds

__all__ = ["check_source"]

_AREA = Area.SOURCE
_CLOCK_SECONDS = 2.0
"""The allowed difference of clocks, because lag is shown in seconds."""

_ONE_MORE = "A table that is copied later, and a long backlog, need one more for a while."

_SOUND: dict[str, tuple[str, Any]] = {
    "version": ("version", 180000),
    "in_recovery": ("primary", False),
    "wal_level": ("wal_level", "logical"),
    "may_replicate": ("role", True),
}
"""What a server must have: for each fact the name of its check, and a value that passes."""


def check_source(facts: Facts, stack: ExitStack) -> Iterator[Finding]:
    """Opens the session that later checks use; the stack closes it."""
    yield from attempted(_AREA, "connection", _connect(facts, stack))
    session, server = facts.session, facts.server
    if session is None or server is None:
        return
    problems = [
        finding
        for fact, (check, _) in _SOUND.items()
        for finding in attempted(_AREA, check, _sound(server, fact, check))
    ]
    yield from problems
    yield from attempted(_AREA, "clock", _clock(session))
    if any(finding.code for finding in problems):
        yield skipped(_AREA, "free slots", "whether a slot can be created: see above")
    else:
        yield from attempted(_AREA, "slot", _slot(facts, session, server))
    yield from attempted(_AREA, "slot survival", _survival(facts, session, server))


def _connect(facts: Facts, stack: ExitStack) -> Iterator[Finding]:
    session = stack.enter_context(connect(facts.uri, application_name=facts.application))
    facts.server = read_server(session)
    facts.session = session
    facts.settings = with_chosen_publication(session, facts.settings)
    number, role = session.info.parameter_status("server_version"), facts.server.role
    encrypted = "encrypted" if session.pgconn.ssl_in_use else "not encrypted"
    yield ok(
        _AREA,
        "connection",
        f'connected to Postgres {number}, database "{facts.server.database}", as "{role}" '
        f"({encrypted})",
    )


def _sound(server: Server, fact: str, check: str) -> Iterator[Finding]:
    # With all other facts right, so that each problem is found and not only the first.
    others = {name: value for name, (_, value) in _SOUND.items() if name != fact}
    check_server(replace(server, **others))
    words = {
        "wal_level": "wal_level is logical",
        "may_replicate": f'the role "{server.role}" may replicate',
    }
    if fact in words:
        yield ok(_AREA, check, words[fact])


@source_errors("ask for the server's time")
def _server_time(session: Session) -> float:
    row = session.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
    assert row is not None
    return float(row[0])


def _clock(session: Session) -> Iterator[Finding]:
    _server_time(session)  # the first call is slower than one round trip
    before = time.time()
    there = _server_time(session)
    after = time.time()
    ahead = there - (before + after) / 2
    if abs(ahead) - (after - before) / 2 < _CLOCK_SECONDS:
        yield ok(_AREA, "clock", "the clocks here and there agree")
        return
    yield warning(
        _AREA,
        "clock",
        f"The server's clock is {abs(ahead):,.1f} s {'ahead of' if ahead > 0 else 'behind'} this "
        "machine's: lag in seconds will be wrong by as much. (Nothing else depends on it.)",
        "Let NTP set both clocks: timedatectl set-ntp true",
    )


def _slot(facts: Facts, session: Session, server: Server) -> Iterator[Finding]:
    name = facts.settings.slot
    state = read_slot(session, name)
    try:
        check_slot(state, server.database)
    except SlotInUse:
        own = f"walflow {facts.settings.name}"
        if not f"{state.application} ".startswith(f"{own} "):
            raise
        yield ok(_AREA, "slot", f'this pipeline runs, and reads the slot "{name}"')
    else:
        if state.exists:
            yield ok(_AREA, "slot", f'the slot "{name}" exists, and nothing else reads it')
    if server.free_slots > 0 or not state.exists:
        yield from _make_slot(facts, server)
    # One to follow, and one more for a while.
    if server.free_slots <= (0 if state.exists else 1):
        yield warning(
            _AREA,
            "free slots",
            "The server has no free replication slot besides the pipeline's own. " + _ONE_MORE,
            NoFreeSlot.default_hint,
        )
    if server.free_senders <= (0 if state.active else 1):
        yield warning(
            _AREA,
            "free senders",
            "The server has no free replication connection besides the pipeline's own. "
            f"{_ONE_MORE}",
            NoFreeSender.default_hint,
        )


def _make_slot(facts: Facts, server: Server) -> Iterator[Finding]:
    """Create a temporary slot, which ends with its connection."""
    if server.free_slots <= 0:
        raise NoFreeSlot("All replication slots of the server are taken (max_replication_slots).")
    facts.doing("creating a temporary slot")
    deadline = time.monotonic() + facts.patience

    def cancelled() -> bool:
        return facts.stopped() or time.monotonic() > deadline

    with Replication(facts.uri, application_name=facts.application) as replication:
        try:
            replication.create_slot(
                f"walflow_check_{scratch_id()}", temporary=True, cancelled=cancelled
            )
        except SourceError:
            if not cancelled():
                raise
            yield warning(
                _AREA,
                "free slots",
                "Postgres creates a slot only when all open transactions have ended, and some have "
                f"not ended in {facts.patience:g} s: the start would wait for them.",
                "To see them: SELECT pid, xact_start, state, query FROM pg_stat_activity "
                "WHERE xact_start IS NOT NULL ORDER BY xact_start;",
            )
            return
    yield ok(
        _AREA,
        "free slots",
        f"created a temporary slot and dropped it ({server.free_slots} slots and "
        f"{server.free_senders} senders are free)",
    )


def _survival(facts: Facts, session: Session, server: Server) -> Iterator[Finding]:
    """What happens to the slot while nothing reads it, and when a standby takes over."""
    source, state = facts.settings.source, read_slot(session, facts.settings.slot)
    resyncs = source.on_slot_lost == "resync"
    # A slot without a position is not ours.
    lost = slot_loss(state) if state.confirmed_flush is not None else None
    if lost is not None:
        if not resyncs:
            raise lost
        yield warning(_AREA, "slot survival", lost.message, "All tables will be copied again.")
    retention = read_retention(session)
    limits = []
    if retention.keep_bytes is not None:
        limits.append(
            (
                f"{human_bytes(retention.keep_bytes)} of log wait for it (max_slot_wal_keep_size)",
                "max_slot_wal_keep_size = '-1'",
            )
        )
    if retention.idle_seconds:
        limits.append(
            (
                f"nothing has read it for {human_seconds(retention.idle_seconds)} "
                "(idle_replication_slot_timeout)",
                "idle_replication_slot_timeout = 0",
            )
        )
    for limit, setting in limits:
        message = f"Postgres invalidates the slot when {limit}"
        if resyncs:
            yield ok(_AREA, "slot survival", f"{message}; all tables are then copied again")
        else:
            yield warning(
                _AREA,
                "slot survival",
                f"{message}: the pipeline then stops.",
                f"As superuser: ALTER SYSTEM SET {setting}; SELECT pg_reload_conf(); "
                "(then watch the source's disk), or let walflow copy all tables again when it "
                "happens (--set source.on_slot_lost=resync).",
            )
    if not limits:
        yield ok(
            _AREA,
            "slot survival",
            "Postgres keeps the slot and its log, however long nothing reads it "
            "(watch the server's disk if walflow does not run for long)",
        )
    yield from attempted(_AREA, "failover", _failover(facts, server, state, retention.standbys))
    if source.failover and retention.standbys and not retention.synchronized_slots:
        yield warning(
            _AREA,
            "failover",
            "The slot may get ahead of the standbys; then walflow cannot continue on them.",
            "As superuser, with the names of the standbys' slots: ALTER SYSTEM SET "
            "synchronized_standby_slots = 'name'; SELECT pg_reload_conf();",
        )


def _failover(facts: Facts, server: Server, state: SlotState, standbys: int) -> Iterator[Finding]:
    asked = facts.settings.source.failover
    if asked:
        require_failover(server.version)
        if state.exists and not state.failover:
            yield warning(
                _AREA,
                "failover",
                f'The slot "{state.name}" was created without failover: standbys do not keep it.',
                "On a replication connection (psql 'dbname=… replication=database'): "
                f"ALTER_REPLICATION_SLOT {state.name} (FAILOVER true);",
            )
        else:
            yield ok(_AREA, "failover", "standbys keep the slot too")
    elif standbys and not state.failover:
        message = "The server has standbys. If one of them takes over, the slot is lost"
        if server.major >= 17:
            yield warning(
                _AREA,
                "failover",
                f"{message}.",
                "Let standbys keep the slot: --set source.failover=true",
            )
        else:
            yield ok(_AREA, "failover", f"{message} (standbys can keep slots since Postgres 17)")
