"""What changes come to in a table with a key: the last state of each row.

Columns whose value was not sent are taken from the newest earlier change of the *row*, which may
have had another key then. A key's timeline is cut into lives: a life begins with an insert, or with
a row that comes from another key; the life before the first of these is that of the table's row. A
row that changes its key goes on in a life of the new key, so rows are chains of lives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from walflow.destinations.lake.netting.comparable import numbered
from walflow.destinations.lake.netting.identity import IdentityPart, identity_of_rows
from walflow.destinations.lake.netting.log_rows import LogRows
from walflow.destinations.lake.netting.net_changes import ColumnarChanges, Ints, Mask
from walflow.destinations.lake.netting.overflow import text_of, texts_by_column
from walflow.destinations.lake.table_schema import EXACT
from walflow.model import ChangeType, TableSchema

__all__ = ["net_by_key"]


@dataclass(frozen=True, slots=True)
class _Events:
    """What happens at each key: the changes, and then the departures of rows that change their
    key, a moment before they arrive at the other one."""

    codes: Ints
    """A number for each key, from 0 on."""
    moments: Ints
    moves: Ints
    """The changes that the departures belong to."""


def net_by_key(log: LogRows, schema: TableSchema) -> ColumnarChanges:
    identity = identity_of_rows(schema, overflow=EXACT in log.rows.column_names)
    keys, events = _events(log, identity)
    last = _last_of_each(events)
    moment = np.sort(events.moments[last])
    arrived = (moment // 2)[moment % 2 == 1]
    has_row = ~log.is_kind(ChangeType.DELETE)
    at = arrived[has_row[arrived]]
    sources, base = _sources(log, events, has_row, at)
    rows = log.rows.select(list(schema.column_names)).take(at)
    overflow = _texts(log, at)
    unsent: dict[str, Mask] = {}
    for name, source in sources.items():
        take = pa.array(source, mask=source < 0)
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, name, log.rows[name].take(take))
        if name in overflow:
            overflow[name] = text_of(log.rows[EXACT].combine_chunks(), name).take(take)
        if (source < 0).any():
            unsent[name] = source < 0
    return ColumnarChanges(
        identity,
        keys.take(last),
        rows,
        log.origins.take(at),
        overflow,
        base,
        events.codes[at],
        unsent,
        log.truncated,
    )


def _texts(log: LogRows, at: Ints) -> dict[str, pa.Array]:
    if EXACT not in log.rows.column_names:
        return {}
    every = texts_by_column(log.rows[EXACT].combine_chunks())
    return {name: texts.take(pa.array(at)) for name, texts in every.items()}


def _events(log: LogRows, identity: Sequence[IdentityPart]) -> tuple[pa.Table, _Events]:
    """And the key of each."""
    columns = list(dict.fromkeys(part.column for part in identity))
    keys = log.rows.select(columns)
    count = keys.num_rows
    moves = np.flatnonzero(log.had_old & log.is_kind(ChangeType.UPDATE))
    if len(moves):
        keys = pa.concat_tables([keys, log.old.select(columns).take(moves)])
    codes = numbered([part.of(keys[part.column].combine_chunks()) for part in identity])
    happens = np.ones(len(codes), dtype=bool)
    # It may be told though it stays.
    happens[count:] = codes[count:] != codes[moves]
    if not happens.all():
        keys, codes, moves = keys.filter(happens), codes[happens], moves[happens[count:]]
    moments = np.concatenate([np.arange(count, dtype=np.int64) * 2 + 1, moves * 2])
    return keys, _Events(codes, moments, moves)


def _last_of_each(events: _Events) -> Ints:
    """For each key, its last event."""
    order = np.argsort(events.moments, kind="stable") if len(events.moves) else slice(None)
    last = np.zeros(int(events.codes.max(initial=-1)) + 1, dtype=np.int64)
    # Of those with the same code, the last one stays.
    last[events.codes[order]] = np.arange(len(events.codes))[order]
    return last


def _sources(
    log: LogRows, events: _Events, has_row: Mask, at: Ints
) -> tuple[Mapping[str, Ints], Ints]:
    """For the rows as these changes leave them: by column that some of them lack, the newest change
    of the row that tells it (-1: none does); and which of the keys the table has the row under."""
    own = events.codes[at]
    lacking = {name: mask for name, mask in log.unsent.items() if mask[at].any()}
    if not lacking:
        return {}, own
    rows = _rows(log, events)
    keys = int(events.codes.max(initial=-1)) + 1
    found = {}
    for name, left_out in lacking.items():
        newest = np.full(keys + len(has_row), -1, dtype=np.int64)
        tells = np.flatnonzero(has_row & ~left_out)
        newest[rows[tells]] = tells
        found[name] = np.where(left_out[at], newest[rows[at]], at)
    # What an insert did not tell can only be known of a row that had the key before.
    return found, np.where(rows[at] < keys, rows[at], own)


def _rows(log: LogRows, events: _Events) -> Ints:
    """For each change, its row: as the number of the key that the table has it under, or if it was
    inserted since, as the number of keys and that of the insert."""
    count, moves = len(log.had_old), events.moves
    keys = int(events.codes.max(initial=-1)) + 1
    starts = log.is_kind(ChangeType.INSERT)
    starts[moves] = True
    lives = _lives(events, np.concatenate([starts, np.zeros(len(moves), dtype=bool)]))
    # The row that a life goes on with, by the life that it had before: doubled each time round, so
    # a chain of n changes of key takes log n of them.
    before = np.arange(count)
    left = lives[count:]
    before[moves[left >= 0]] = left[left >= 0]
    while not np.array_equal(further := before[before], before):
        before = further
    first = keys + np.arange(count)
    first[moves[left < 0]] = events.codes[count:][left < 0]
    life = lives[:count]
    return np.where(life >= 0, first[before[life]], events.codes[:count])


def _lives(events: _Events, starts: Mask) -> Ints:
    """For each event, the change that its life of the key begins with; -1: the table's row."""
    order = np.lexsort((events.moments, events.codes))
    codes = events.codes[order]
    place = np.arange(len(order))
    newest = np.maximum.accumulate(np.where(starts[order], place, -1))
    begins = np.maximum.accumulate(
        np.where(np.concatenate([[True], codes[1:] != codes[:-1]]), place, 0)
    )
    lives = np.empty(len(order), dtype=np.int64)
    lives[order] = np.where(newest >= begins, order[newest], -1)
    return lives
