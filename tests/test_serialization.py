"""Our values as JSON: what comes back is what went in, and what does not fit is refused."""

from __future__ import annotations

import json

import pytest

from walflow.changelog import LogFile, Segment
from walflow.changelog.copies import CopyPlan
from walflow.model import ChangeStats, Lsn, Span, TableSchema
from walflow.serialization import from_dict, from_json, to_dict, to_json
from walflow.states import Membership, TableReplicationState
from walflow.stores.base import Report
from walflow.testing.store_samples import ERRORED, SCHEMA, SINCE

STATS = ChangeStats(rows=3, inserts=2, truncates=1, last_truncate=(5, 2))
SEGMENT = Segment(
    Span(Lsn(7), Lsn.parse("16/B374D848")),
    1_763_000_000_000_001,
    2,
    (LogFile("0/é.parquet", 16384, Lsn(9), 10, STATS, 2**32 - 1),),
    4,
    SINCE,
)
PLAN = CopyPlan(SCHEMA, None, {16384: 5, 16390: 6}, (), ERRORED.membership)
REPORT = Report(Lsn(9), Lsn(8), Lsn(7), 0.5, SINCE, Lsn(8), {16384: Lsn(7)})


@pytest.mark.parametrize("record", [SEGMENT, SCHEMA, ERRORED, PLAN, REPORT, ChangeStats()])
def test_what_comes_back_is_what_went_in(record: object) -> None:
    for back in (
        from_json(type(record), to_json(record)),
        from_json(type(record), to_json(record).decode()),
        from_dict(type(record), json.loads(json.dumps(to_dict(record)))),
    ):
        assert back == record
        assert repr(back) == repr(record) or isinstance(record, TableReplicationState | CopyPlan)
    assert b"\n" not in to_json(record)


def test_what_equality_leaves_out_comes_back_too() -> None:
    back = from_json(Membership, to_json(ERRORED.membership))
    assert back.came_empty == ERRORED.membership.came_empty
    assert type(from_json(TableSchema, to_json(SCHEMA)).version) is Lsn
    assert from_json(CopyPlan, to_json(PLAN)).id == PLAN.id


def test_defaults_are_left_out_and_positions_are_numbers() -> None:
    assert to_dict(ChangeStats()) == {}
    assert to_dict(STATS) == {"rows": 3, "inserts": 2, "truncates": 1, "last_truncate": [5, 2]}
    assert to_dict(SEGMENT)["span"] == {"after": 7, "upto": 0x16_B374D848}
    assert to_json(STATS) == b'{"rows":3,"inserts":2,"truncates":1,"last_truncate":[5,2]}'


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ({"rows": 1, "rounds": 2}, r"no ChangeStats \(rounds: Unexpected"),
        ({"rows": "many"}, r"no ChangeStats \(rows: .*integer"),
        ({"last_truncate": [1]}, r"last_truncate\.1: .*required"),
    ],
)
def test_what_does_not_fit_is_refused(content: dict[str, object], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        from_dict(ChangeStats, content)
    with pytest.raises(ValueError, match=fault):
        from_json(ChangeStats, json.dumps(content))


def test_what_is_missing_or_is_no_json_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no Span \(upto: .*required"):
        from_dict(Span, {"after": 1})
    # What a value itself refuses.
    with pytest.raises(ValueError, match="cannot end"):
        from_dict(Span, {"after": 2, "upto": 1})
    for text in ("", "{", "[]", "null", "{} {}"):
        with pytest.raises(ValueError, match="no Span"):
            from_json(Span, text)
        with pytest.raises(ValueError, match="no Span"):
            from_json(Span, text.encode())
