"""Tables that somebody else moves while they are followed: nothing is applied where it does not
belong, and what a commit was made for shows afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.destinations.pairs import KEYED, Pair
from tests.destinations.reference import make_schema
from walflow.config import MaintenanceSettings
from walflow.config.lake import EngineChoice
from walflow.destinations.base import TableChanges
from walflow.destinations.lake import LakeDestination
from walflow.destinations.lake.engines import ColumnarEngine
from walflow.destinations.lake.maintenance import Due, Schedule
from walflow.destinations.lake.owner import Place, position_of
from walflow.errors import DestinationForeign, TableMoved, WalflowError
from walflow.model import Lsn, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

spark_needed = pytest.mark.spark

KEYLESS = make_schema({"a": "string", "n": "int"}, [])


@dataclass(slots=True)
class Room:
    """A table with three batches."""

    pair: Pair
    events: list[TableChanges]

    @property
    def identifier(self) -> str:
        return self.pair.format.identifier(self.pair.source.schema.name)

    def change(self, value: str) -> TableChanges:
        """What the next batch is, which is not applied."""
        source = self.pair.source
        with source.transaction():
            if source.schema.key:
                source.update(source.find(id=1), a=value)
                source.insert(id=len(source.rows) + 1, a=value)
            else:
                source.delete(source.rows[0])
                source.insert(a=value, n=1)
        return source.events(self.pair.spark)

    def write(self, events: TableChanges) -> None:
        self.pair.destination.apply(events)

    def set_back(self, batches: int) -> None:
        """Somebody makes the table what it was so many batches ago."""
        schema, session = self.pair.source.schema, self.pair.session
        positions = [events.span.upto for events in self.events]
        wanted = positions[-1 - batches]
        versions = self.pair.format.versions(session, schema.name)
        version = [version.id for version in versions if version.position == wanted][-1]
        if self.pair.format.name == "iceberg":
            name = ".".join(self.identifier.split(".")[1:])
            session.sql(f"CALL lake.system.rollback_to_snapshot('{name}', {version})")
        else:
            session.sql(f"RESTORE TABLE {self.identifier} TO VERSION AS OF {version}")

    def position(self) -> Lsn | None:
        return self.pair.destination.applied(self.pair.source.schema)

    def replay(self) -> None:
        """As the pipeline does it: from where the table is."""
        position = self.position()
        for events in self.events:
            if position is not None and events.span.upto > position:
                self.write(events)
        self.pair.check()


# Only tables of Iceberg that have a key are written in columns.
every_way = pytest.mark.parametrize(
    ("lake_format", "engine", "schema"),
    [
        pytest.param("iceberg", "columns", KEYED, id="iceberg-columns-keyed"),
        pytest.param("iceberg", "spark", KEYED, id="iceberg-spark-keyed"),
        pytest.param("iceberg", "spark", KEYLESS, id="iceberg-spark-keyless"),
        pytest.param("delta", "spark", KEYED, id="delta-keyed", marks=pytest.mark.long),
        pytest.param("delta", "spark", KEYLESS, id="delta-keyless", marks=pytest.mark.long),
    ],
)


@pytest.fixture
def room(
    spark: SparkSession,
    tmp_path: Path,
    lake_format: str,
    engine: str,
    schema: TableSchema,
) -> Iterator[Room]:
    choice: EngineChoice = "spark" if engine == "spark" else "auto"
    maintenance = MaintenanceSettings(small_files=2)
    pair = Pair(spark, tmp_path, schema, lake_format, maintenance, choice)
    with pair.source.transaction():
        for number in range(1, 4):
            pair.source.insert(**({"id": number} if schema.key else {}), a=f"a{number}", n=1)
    pair.copy()
    room = Room(pair, [])
    for number in range(3):
        room.events.append(room.change(f"batch {number}"))
        room.write(room.events[-1])
    pair.check()
    yield room
    pair.destination.shutdown()


@spark_needed
@every_way
def test_a_table_that_was_set_back_is_gone_on_with_from_where_it_is(room: Room) -> None:
    room.set_back(2)
    room.events.append(room.change("afterwards"))
    with pytest.raises(TableMoved, match="the changes begin at"):
        room.write(room.events[-1])
    assert room.position() == room.events[0].span.upto
    room.replay()
    # Maintenance says of a table what it is, not what it was.
    room.set_back(1)
    at = room.position()
    assert room.pair.destination.maintenance_due(room.pair.source.schema)
    room.pair.destination.maintain(room.pair.source.schema)
    assert room.position() == at == room.events[-2].span.upto
    room.replay()


@spark_needed
@every_way
def test_what_happens_while_a_batch_is_written_is_seen(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is where the batch begins, is asked, and is set back only then."""
    moved = _once_looked_at(monkeypatch, room.pair.destination, lambda: room.set_back(3))
    room.events.append(room.change("in between"))
    with pytest.raises(TableMoved):
        room.write(room.events[-1])
    assert moved
    # Either nothing was written, or it shows that it was not made for what is there: then the
    # table is copied again.
    for destination in (room.pair.destination, room.pair.another_destination()):
        assert destination.applied(room.pair.source.schema) in (None, room.events[0].span.upto)
    if room.position() is not None:
        room.replay()
    else:
        room.pair.copy()
    room.pair.check()
    room.events = [room.change("and on")]
    room.write(room.events[0])
    room.pair.check()


@spark_needed
@pytest.mark.parametrize(
    ("lake_format", "engine", "schema"),
    [("iceberg", "spark", KEYED), ("delta", "spark", KEYED)],
    ids=["iceberg", "delta"],
)
def test_what_happens_while_a_table_is_maintained_is_seen(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maintenance commits several times that the table stays where it is."""
    destination, schema = room.pair.destination, room.pair.source.schema
    monkeypatch.setattr(Schedule, "begin", lambda *_: Due(True, True))
    moved = _once_looked_at(monkeypatch, destination, lambda: room.set_back(2))
    # Maintenance may be refused, because the table is another one by then.
    with contextlib.suppress(WalflowError):
        destination.maintain(schema)
    assert moved
    for asked in (destination, room.pair.another_destination()):
        assert asked.applied(schema) in (None, room.events[0].span.upto)


@spark_needed
@pytest.mark.parametrize(
    ("lake_format", "engine", "schema"), [("iceberg", "columns", KEYED)], ids=["columns"]
)
def test_a_table_that_was_made_anew(room: Room) -> None:
    pair, event = room.pair, room.change("to nobody")
    columns = "id bigint, a string, b string, n int"
    pair.session.sql(f"DROP TABLE {room.identifier} PURGE")
    with pytest.raises(TableMoved, match="no complete copy"):
        room.write(event)
    pair.session.sql(f"CREATE TABLE {room.identifier} ({columns}) USING iceberg")
    with pytest.raises(DestinationForeign):
        room.write(event)
    pair.session.sql(f"DROP TABLE {room.identifier} PURGE")
    # By another process of ours, say; as many versions as there were.
    pair.copy()
    assert room.position() == pair.source.position
    room.write(room.change("to the new one"))
    pair.check()


@spark_needed
@pytest.mark.parametrize(
    ("lake_format", "engine", "schema"), [("delta", "spark", KEYED)], ids=["delta"]
)
def test_columns_of_then(room: Room) -> None:
    """Delta brings back the columns, too."""
    before = room.pair.source.schema
    events = room.change("changed")
    room.pair.session.sql(f"ALTER TABLE {room.identifier} RENAME COLUMN b TO c")
    with pytest.raises(TableMoved, match="columns"):
        room.write(events)
    assert before == room.pair.source.schema


def test_positions_by_what_commits_say() -> None:
    def at(position: int, since: int | None = None) -> Place:
        return Place(Lsn(position), None if since is None else Lsn(since))

    assert position_of([]) is None
    assert position_of([None, at(1)]) is None
    # Copies, and commits of former versions of walflow.
    assert position_of([at(3), at(9)]) == Lsn(3)
    assert position_of([at(3, 2), at(2, 1)]) == Lsn(3)
    assert position_of([at(3, 3), at(3, 2)]) == Lsn(3)
    # By some of them the table stays where it is.
    assert position_of([at(3, 3), at(3, 3), at(3, 2), at(2, 1), at(7)]) == Lsn(3)
    # Put on another version.
    assert position_of([at(3, 2), at(1)]) is None
    assert position_of([at(3, 2), None]) is None
    assert position_of([at(3, 3), at(3, 3), at(1)]) is None
    assert position_of([at(3, 3), at(3, 3), at(3, 2), at(1)]) is None
    assert position_of([at(3, 3), at(3, 3), None]) is None
    # What was before has expired.
    assert position_of([at(3, 2)]) == Lsn(3)
    assert position_of([at(3, 3), at(3, 3)]) == Lsn(3)


def _once_looked_at(
    monkeypatch: pytest.MonkeyPatch, destination: LakeDestination, then: Callable[[], None]
) -> list[bool]:
    """Between the moment that a batch asks where the table is and its commit."""
    done: list[bool] = []

    def hook(kind: type, name: str) -> None:
        method = getattr(kind, name)

        def first(*given: Any) -> Any:
            if not done:
                done.append(True)
                then()
            return method(*given)

        monkeypatch.setattr(kind, name, first)

    # By Spark, and in columns.
    hook(type(destination._format), "stamped")
    hook(ColumnarEngine, "merge")
    return done
