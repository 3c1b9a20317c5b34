"""Random changes with everything that makes a batch hard: overflow texts in keys and values, TOAST
left out, keys that change, NaN, -0, lists and maps."""

from __future__ import annotations

import random
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from tests.destinations.pairs import FOREVER, LAST_DAY, NAN
from tests.destinations.reference import Inexact, Row, Source, make_schema

__all__ = ["KEYED", "KEYLESS", "change", "insert"]

TYPES = {
    "k": "int",
    "t": "timestamp",
    "f": "double",
    "a": "string",
    "l": "array<string>",
    "m": "map<string,string>",
    "n": "decimal(12,2)",
}
KEYED = make_schema(TYPES, ["k", "t", "f"])
KEYLESS = make_schema(TYPES, [])
REST: Mapping[str, tuple[Any, ...]] = {
    "a": (None, "x", "y"),
    "l": (None, [], ["a", None], ["a"], ["1:a"], [None, "a"]),
    "m": (None, [], [("k", "v"), ("j", None)], [("j", None), ("k", "v")], [("k", None)]),
    "n": (None, NAN, Decimal("1.00"), Inexact(None, "Infinity")),
}


def insert(source: Source, chance: random.Random) -> None:
    key = new_key(source, chance)
    if key is not None:
        source.insert(**key, **{name: chance.choice(values) for name, values in REST.items()})


def change(source: Source, chance: random.Random) -> None:
    kind = chance.random()
    if kind < 0.4 or not source.rows:
        insert(source, chance)
        return
    row = chance.choice(source.rows)
    if kind < 0.55:
        source.delete(row)
        return
    changed: Row = {}
    if chance.random() < 0.5:
        changed |= new_key(source, chance) or {}
    for name in chance.sample(sorted(REST), 2):
        changed[name] = chance.choice(REST[name])
    left_out = [n for n in ("a", "l", "n") if n not in changed and chance.random() < 0.7]
    source.update(row, left_out if source.schema.key else (), **changed)


def new_key(source: Source, chance: random.Random) -> Row | None:
    """None: it is taken."""
    floats = (1.0, 2.0) if source.schema.key else (0.0, -0.0, float("nan"))
    key = {
        "k": chance.randrange(3),
        "t": chance.choice((FOREVER, LAST_DAY)),
        "f": chance.choice(floats),
    }
    taken = any(all(row[name] == key[name] for name in key) for row in source.rows)
    return None if source.schema.key and taken else key
