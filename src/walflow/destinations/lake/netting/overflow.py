"""Overflow texts in columns: maps from a column's name to the text that it could not hold."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from walflow.destinations.lake.netting.comparable import spread
from walflow.model import OLD_EXACT

__all__ = ["OVERFLOW", "own_and_old_texts", "text_of", "texts_by_column", "texts_map"]

OVERFLOW = pa.map_(pa.string(), pa.string())


def own_and_old_texts(
    texts: pa.MapArray, names: Mapping[str, str | None]
) -> tuple[pa.MapArray, pa.MapArray]:
    """The texts of the rows, and of the rows as they were; each of a column in ``names`` under its
    new name, or not at all if there is none."""
    owners, inner = spread(texts)
    called = texts.keys.take(pa.array(inner)).dictionary_encode()
    words = called.dictionary.to_pylist()
    is_old = np.array([word.startswith(OLD_EXACT) for word in words], dtype=bool)
    bare = [word.removeprefix(OLD_EXACT) for word in words]
    new = pa.array([names.get(word, word) for word in bare], pa.string())
    indices = np.asarray(called.indices, dtype=np.int64)
    stays = np.asarray(new.is_valid(), dtype=bool)[indices]

    def part(mask: np.ndarray) -> pa.MapArray:
        at = np.flatnonzero(mask & stays)
        keys = new.take(pa.array(indices[at]))
        return _maps(owners[at], keys, texts.items.take(pa.array(inner[at])), len(texts))

    old = is_old[indices]
    return part(~old), part(old)


def text_of(texts: pa.MapArray, name: str) -> pa.Array:
    """The column's text of each row, or null."""
    return texts_by_column(texts, [name])[name]


def texts_by_column(texts: pa.MapArray, names: list[str] | None = None) -> dict[str, pa.Array]:
    """As text_of, for these columns, or for all that some row has a text of."""
    owners, inner = spread(texts)
    called = texts.keys.take(pa.array(inner))
    found = {}
    for name in called.unique().to_pylist() if names is None else names:
        hit = np.flatnonzero(np.asarray(pc.equal(called, name)))
        place = np.full(len(texts), -1, dtype=np.int64)
        place[owners[hit]] = inner[hit]
        found[name] = texts.items.take(pa.array(place, mask=place < 0))
    return found


def texts_map(texts: Mapping[str, pa.Array], rows: int) -> pa.MapArray:
    """A map of each row's texts that are there; null rather than empty."""
    owners, names, values = [np.zeros(0, np.int64)], [], []
    for name, column in texts.items():
        at = np.flatnonzero(np.asarray(column.is_valid()))
        owners.append(at)
        names.append(pa.repeat(pa.scalar(name, pa.string()), len(at)))
        values.append(column.take(pa.array(at)))
    whose = np.concatenate(owners)
    order = np.argsort(whose, kind="stable")
    take = pa.array(order)
    return _maps(
        whose[order],
        pa.chunked_array(names, pa.string()).combine_chunks().take(take),
        pa.chunked_array(values, pa.string()).combine_chunks().take(take),
        rows,
    )


def _maps(owners: np.ndarray, keys: pa.Array, items: pa.Array, rows: int) -> pa.MapArray:
    counts = np.bincount(owners, minlength=rows)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    every = pa.MapArray.from_arrays(pa.array(offsets), keys, items)
    return every.take(pa.array(np.arange(rows), mask=counts == 0))
