"""The decoder against streams of real servers, and against a decoder that goes row by row."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator, Sequence

import pytest

from tests.conftest import Database
from tests.source.stream import (
    Recorder,
    ReferenceDecoder,
    Row,
    Rows,
    decode_pieces,
    describer,
    frames_of,
)
from walflow.errors import NoReplicaIdentity, ProtocolError
from walflow.model import Lsn, ReplicaIdentity
from walflow.source.connection import Session, connect
from walflow.source.stream.pgoutput import Decoder
from walflow.source.stream.replication_connection import Replication, output_options

BIG = 40_000


def noise(size: int, seed: int = 0) -> str:
    """Text that compression does not shrink below what TOAST moves out of the row."""
    return "".join(random.Random(seed).choices(string.ascii_letters + string.digits, k=size))


@pytest.fixture
def session(any_database: Database) -> Iterator[Session]:
    with connect(any_database.uri, application_name="test") as session:
        yield session


@pytest.fixture
def newest(database: Database) -> Iterator[Session]:
    """A session on the newest server only, where versions do not differ."""
    with connect(database.uri, application_name="test") as session:
        yield session


def decoded(
    session: Session, messages: Sequence[bytes], keys: dict[str, Sequence[str]] | None = None
) -> Rows:
    """All messages at once, after a check against the second decoder."""
    rows = decode_pieces(Decoder(describer(session)), [messages])
    reference = ReferenceDecoder(lambda name: (keys or {}).get(name, ()))
    reference.feed(messages)
    assert rows.of_table == reference.rows
    assert rows.messages == len(messages)
    assert rows.transactions == sum(message[:1] == b"C" for message in messages)
    return rows


def kinds(rows: Sequence[Row]) -> list[str]:
    return [row["_change_type"] for row in rows]


def pick(rows: Sequence[Row], *names: str) -> list[tuple[object, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


# -- changes of rows ------------------------------------------------------------------------------


def test_inserts_updates_deletes(any_database: Database, session: Session) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, name text, price numeric(10,2), ok bool)",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    recorder = Recorder(any_database)
    any_database.execute(
        "INSERT INTO t VALUES (1, 'one', 1.5, true), (2, NULL, NULL, NULL), (3, '', 0, false)",
        "UPDATE t SET name = 'eins' WHERE id = 1",
        "UPDATE t SET id = 20 WHERE id = 2",
        "DELETE FROM t WHERE id = 3",
    )
    rows = decoded(session, recorder.messages()).of_table["t"]
    assert kinds(rows) == ["insert"] * 3 + ["update"] * 2 + ["delete"]
    assert pick(rows, "id", "name", "_old", "_seq") == [
        (1, "one", None, 0),
        (2, None, None, 1),
        (3, "", None, 2),
        (1, "eins", None, 0),
        (20, None, {"id": 2}, 0),
        (3, None, None, 0),
    ]
    assert [row["_lsn"] for row in rows] == sorted(row["_lsn"] for row in rows)
    assert len({row["_xid"] for row in rows}) == 4


IDENTITIES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": (("ALTER TABLE t ADD PRIMARY KEY (a, c)",), ("a", "c")),
    "index": (
        (
            "ALTER TABLE t ALTER c SET NOT NULL, ALTER d SET NOT NULL",
            "CREATE UNIQUE INDEX i ON t (d, c)",
            "ALTER TABLE t REPLICA IDENTITY USING INDEX i",
        ),
        ("c", "d"),
    ),
    "full with key": (
        ("ALTER TABLE t ADD PRIMARY KEY (c)", "ALTER TABLE t REPLICA IDENTITY FULL"),
        ("c",),
    ),
    "full without key": (("ALTER TABLE t REPLICA IDENTITY FULL",), ()),
}


@pytest.mark.parametrize("identity", IDENTITIES)
def test_old_rows(any_database: Database, session: Session, identity: str) -> None:
    statements, key = IDENTITIES[identity]
    any_database.execute(
        "CREATE TABLE t (a int, b text, c text, d int, big text)",
        *statements,
        "CREATE PUBLICATION p FOR TABLE t",
        f"INSERT INTO t SELECT i, 'b' || i, 'c' || i, i, '{noise(BIG)}' || i"
        " FROM generate_series(1, 9) i",
    )
    recorder = Recorder(any_database)
    any_database.execute(
        "UPDATE t SET b = 'new' WHERE d = 1",
        "UPDATE t SET b = NULL WHERE d = 2",
        "UPDATE t SET c = 'moved' WHERE d = 3",
        "UPDATE t SET a = 40, d = 40 WHERE d = 4",
        "UPDATE t SET b = b WHERE d = 5",
        "UPDATE t SET big = 'small' WHERE d = 6",
        "UPDATE t SET big = NULL WHERE d = 7",
        "DELETE FROM t WHERE d = 8",
    )
    rows = decoded(session, recorder.messages(), {"t": key}).of_table["t"]
    full = identity.startswith("full")
    for row in rows[:5]:
        # The old row holds what Postgres left out of the new one.
        assert row["_unchanged"] == (None if full else ["big"])
        assert (row["big"] is not None) == full
    assert pick(rows[5:7], "_unchanged", "big") == [(None, "small"), (None, None)]
    changed = [row["_old"] is not None for row in rows[:7]]
    expected = {
        "default": [False, False, True, True, False, False, False],
        "index": [False, False, True, True, False, False, False],
        "full with key": [False, False, True, False, False, False, False],
        "full without key": [True] * 7,
    }
    assert changed == expected[identity]
    assert rows[2]["_old"] is not None
    assert set(rows[2]["_old"]) == set(key or ("a", "b", "c", "d", "big"))
    assert rows[2]["_old"]["c"] == "c3"
    known = {name for name in ("a", "b", "c", "d", "big") if rows[7][name] is not None}
    assert known == ({"a", "b", "c", "d", "big"} if full else set(key))


def test_a_key_column_that_is_toasted(any_database: Database, session: Session) -> None:
    any_database.execute(
        "CREATE TABLE t (k text PRIMARY KEY, n int, other text)",
        # Not compressed, so that it is moved out although an index can still hold it.
        "ALTER TABLE t ALTER k SET STORAGE EXTERNAL, ALTER other SET STORAGE EXTERNAL",
        "CREATE PUBLICATION p FOR TABLE t",
        f"INSERT INTO t VALUES ('{noise(2400)}', 1, '{noise(BIG)}'), ('{noise(2400, 1)}', 2, 'x')",
    )
    recorder = Recorder(any_database)
    any_database.execute(
        "UPDATE t SET n = 10 WHERE n = 1",
        f"UPDATE t SET k = '{noise(2500, 2)}' WHERE n = 10",
        "UPDATE t SET k = 'short', n = 20 WHERE n = 2",
        "DELETE FROM t WHERE n = 10",
    )
    rows = decoded(session, recorder.messages()).of_table["t"]
    assert pick(rows, "_change_type", "k", "n", "_unchanged", "_old") == [
        # The key's value did not change, so Postgres does not send it in the new row.
        ("update", noise(2400), 10, ["other"], None),
        ("update", noise(2500, 2), 10, ["other"], {"k": noise(2400)}),
        ("update", "short", 20, None, {"k": noise(2400, 1)}),
        ("delete", noise(2500, 2), None, None, None),
    ]


def test_keys_that_compare_in_their_own_way(any_database: Database, session: Session) -> None:
    """Arrays, of which Arrow compares none, NaN, which equals itself in Postgres's indexes, and
    -0, which there equals 0 and is another value."""
    any_database.execute(
        "CREATE TABLE t (a text[], f float8, n int, PRIMARY KEY (a, f))",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "CREATE PUBLICATION p FOR TABLE t",
        "INSERT INTO t VALUES ('{}', 'NaN', 1), ('{a,NULL}', 1, 2), ('{b}', 2, 3), ('{c,d}', 3, 4),"
        " ('{z}', 0, 5)",
    )
    recorder = Recorder(any_database)
    any_database.execute(
        "UPDATE t SET n = n * 10",
        "UPDATE t SET a = '{a,x}' WHERE n = 20",
        "UPDATE t SET a = '{}' WHERE n = 30",
        "UPDATE t SET f = 'NaN' WHERE n = 40",
        "UPDATE t SET f = '-0' WHERE n = 50",
    )
    rows = decode_pieces(Decoder(describer(session)), [recorder.messages()]).of_table["t"]
    assert [row["_old"] for row in rows] == [
        *[None] * 5,
        {"a": ["a", None], "f": 1.0},
        {"a": ["b"], "f": 2.0},
        {"a": ["c", "d"], "f": 3.0},
        {"a": ["z"], "f": 0.0},
    ]


def test_nulls_everywhere_and_dropped_columns(any_database: Database, session: Session) -> None:
    any_database.execute(
        "CREATE TABLE t (gone int, a int, gone2 text, b text, c bytea, d bool)",
        "ALTER TABLE t DROP COLUMN gone, DROP COLUMN gone2",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    recorder = Recorder(any_database)
    any_database.execute(
        "INSERT INTO t VALUES (NULL, NULL, NULL, NULL), (1, '', '\\x', false)",
        "UPDATE t SET a = NULL, b = NULL, c = NULL, d = NULL WHERE a = 1",
        "UPDATE t SET a = 5 WHERE ctid = (SELECT min(ctid) FROM t)",
        "DELETE FROM t",
    )
    rows = decoded(session, recorder.messages()).of_table["t"]
    nothing = dict.fromkeys("abcd")
    assert [{name: row[name] for name in "abcd"} for row in rows] == [
        nothing,
        {"a": 1, "b": "", "c": b"", "d": False},
        nothing,
        nothing | {"a": 5},
        *([nothing, nothing | {"a": 5}] if rows[4]["a"] is None else [nothing | {"a": 5}, nothing]),
    ]
    assert rows[2]["_old"] == {"a": 1, "b": "", "c": b"", "d": False}
    assert rows[3]["_old"] == nothing


def test_values_of_a_megabyte_and_1600_columns(database: Database, newest: Session) -> None:
    columns = ", ".join(f"c{i} int" for i in range(1600))
    database.execute(
        "CREATE TABLE big (id int PRIMARY KEY, v text)",
        f"CREATE TABLE wide ({columns})",
        "CREATE TABLE none ()",
        "CREATE PUBLICATION p FOR TABLE big, wide, none",
    )
    recorder = Recorder(database)
    every_third = ", ".join(str(i) if i % 3 else "NULL" for i in range(1600))
    database.execute(
        "INSERT INTO big SELECT i, repeat(chr(96 + i), 1 << 20) FROM generate_series(1, 8) i",
        f"INSERT INTO wide VALUES ({every_third}), ({every_third})",
        "INSERT INTO none SELECT FROM generate_series(1, 3)",
    )
    rows = decoded(newest, recorder.messages()).of_table
    assert [row["v"] for row in rows["big"]] == [chr(97 + i) * (1 << 20) for i in range(8)]
    assert rows["wide"][1]["c1598"] == 1598
    assert rows["wide"][1]["c1599"] is None
    assert kinds(rows["none"]) == ["insert"] * 3


def test_updates_without_an_identity_are_refused(database: Database, newest: Session) -> None:
    database.execute("CREATE TABLE t (a int)", "CREATE PUBLICATION p FOR TABLE t")
    recorder = Recorder(database)
    database.execute("INSERT INTO t VALUES (1)")
    decoded(newest, recorder.messages())
    # Postgres refuses such an update itself, and so it must be made up here.
    insert = b"I" + (99).to_bytes(4, "big") + b"N\0\1n"
    relation = b"R" + (99).to_bytes(4, "big") + b"public\0t\0d\0\1\0a\0\0\0\0\x17\xff\xff\xff\xff"
    begin = b"B" + bytes(7) + b"\7" + bytes(8) + (7).to_bytes(4, "big")
    decoder = Decoder(describer(newest))
    decoder.decode(frames_of([begin, relation, insert]))
    with pytest.raises(NoReplicaIdentity, match="no replica identity"):
        decoder.decode(frames_of([b"D" + insert[1:5] + b"O" + insert[6:]]))


# -- transactions ---------------------------------------------------------------------------------


def test_transactions_of_all_shapes(any_database: Database, session: Session) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE TABLE silent (id int PRIMARY KEY)",
        "CREATE PUBLICATION p FOR TABLE t, other",
    )
    recorder = Recorder(any_database)
    with any_database.connect() as one, any_database.connect() as two:
        one.autocommit = two.autocommit = False
        # Interleaved: the stream has them one after the other, in the order of their commits.
        one.execute("INSERT INTO t VALUES (1, 'one')")
        two.execute("INSERT INTO t VALUES (2, 'two')")
        one.execute("INSERT INTO other VALUES (1)")
        two.execute("UPDATE t SET v = 'zwei' WHERE id = 2")
        two.commit()
        one.execute("UPDATE t SET v = 'eins' WHERE id = 1")
        one.commit()
        # Savepoints, one of them rolled back, with the same rows touched again.
        one.execute("INSERT INTO t VALUES (3, 'kept')")
        one.execute("SAVEPOINT a")
        one.execute("INSERT INTO t VALUES (4, 'lost')")
        one.execute("SAVEPOINT b")
        one.execute("DELETE FROM t WHERE id = 1")
        one.execute("ROLLBACK TO a")
        one.execute("INSERT INTO t VALUES (4, 'again')")
        one.execute("SAVEPOINT c")
        one.execute("UPDATE t SET v = 'thrice' WHERE id = 3")
        one.execute("RELEASE c")
        one.commit()
        one.execute("INSERT INTO t VALUES (5, 'never')")
        one.rollback()
        # Nothing in it for us.
        one.execute("INSERT INTO silent VALUES (1)")
        one.commit()
        one.execute("SELECT pg_current_xact_id()")
        one.commit()
    messages = recorder.messages()
    rows = decoded(session, messages)
    assert pick(rows.of_table["t"], "_change_type", "id", "v", "_seq") == [
        ("insert", 2, "two", 0),
        ("update", 2, "zwei", 1),
        ("insert", 1, "one", 0),
        ("update", 1, "eins", 2),
        ("insert", 3, "kept", 0),
        ("insert", 4, "again", 1),
        ("update", 3, "thrice", 2),
    ]
    assert pick(rows.of_table["other"], "id", "_seq") == [(1, 1)]
    assert rows.position == Lsn(int.from_bytes(messages[-1][10:18], "big"))


def test_truncates(any_database: Database, session: Session) -> None:
    any_database.execute(
        "CREATE TABLE a (id serial PRIMARY KEY, v text)",
        "CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a)",
        "CREATE TABLE c (id int PRIMARY KEY)",
        "CREATE TABLE unpublished (id int PRIMARY KEY)",
        "CREATE PUBLICATION p FOR TABLE a, b, c",
    )
    recorder = Recorder(any_database)
    with any_database.connect() as connection, connection.transaction():
        connection.execute("INSERT INTO a (v) VALUES ('x')")
        connection.execute("INSERT INTO b VALUES (1, 1)")
        connection.execute("TRUNCATE a CASCADE")
        connection.execute("INSERT INTO a (v) VALUES ('y')")
        connection.execute("TRUNCATE c, a, unpublished RESTART IDENTITY CASCADE")
        connection.execute("INSERT INTO a (v) VALUES ('z')")
    any_database.execute("TRUNCATE c")
    rows = decoded(session, recorder.messages()).of_table
    assert pick(rows["a"], "_change_type", "id", "v", "_seq") == [
        ("insert", 1, "x", 0),
        ("truncate", None, None, 2),
        ("insert", 2, "y", 3),
        ("truncate", None, None, 4),
        ("insert", 1, "z", 5),
    ]
    assert pick(rows["b"], "_change_type", "_seq") == [
        ("insert", 1),
        ("truncate", 2),
        ("truncate", 4),
    ]
    assert pick(rows["c"], "_change_type", "_seq") == [("truncate", 4), ("truncate", 0)]


# -- messages beside changes ----------------------------------------------------------------------


def test_types_origins_and_logical_messages(any_database: Database, session: Session) -> None:
    origin = f"origin_{any_database.name}"
    any_database.execute(
        "CREATE TYPE mood AS ENUM ('happy', 'sad')",
        "CREATE DOMAIN euro AS numeric(9,2) CHECK (VALUE >= 0)",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE TABLE t (id int PRIMARY KEY, m mood, e euro, p pair, ms mood[])",
        "CREATE PUBLICATION p FOR TABLE t",
        f"SELECT pg_replication_origin_create('{origin}')",
    )
    recorder = Recorder(any_database)
    with any_database.connect() as connection:
        connection.execute("SELECT pg_replication_origin_session_setup(%s)", [origin])
        with connection.transaction():
            connection.execute("SELECT pg_logical_emit_message(true, 'prefix', 'inside')")
            connection.execute("INSERT INTO t VALUES (1, 'happy', 1.5, (1, 'x, y'), '{sad,happy}')")
            connection.execute("SELECT pg_logical_emit_message(false, 'prefix', 'at once')")
            connection.execute("UPDATE t SET m = 'sad'")
        connection.execute("SELECT pg_logical_emit_message(false, 'prefix', 'outside')")
        connection.execute("SELECT pg_replication_origin_session_reset()")
    any_database.execute(f"SELECT pg_replication_origin_drop('{origin}')")
    messages = recorder.messages(messages="true")
    assert {message[:1] for message in messages} == {b"B", b"O", b"R", b"Y", b"M", b"I", b"U", b"C"}
    decoder = Decoder(describer(session))
    rows = decode_pieces(decoder, [messages])
    assert pick(rows.of_table["t"], "_seq", "id", "m", "p", "ms") == [
        (0, 1, "happy", '(1,"x, y")', ["sad", "happy"]),
        (1, 1, "sad", '(1,"x, y")', ["sad", "happy"]),
    ]
    assert str(rows.of_table["t"][0]["e"]) == "1.50"
    single = decode_pieces(Decoder(describer(session)), [[message] for message in messages])
    assert single.of_table == rows.of_table


def test_changes_of_a_tables_form(any_database: Database, session: Session) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int)",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    recorder = Recorder(any_database)
    any_database.execute("INSERT INTO t VALUES (1, 1)")
    with any_database.connect() as connection, connection.transaction():
        connection.execute("INSERT INTO t VALUES (2, 2)")
        connection.execute("ALTER TABLE t ADD COLUMN b text DEFAULT 'b'")
        connection.execute("INSERT INTO t VALUES (3, 3, 'three')")
        connection.execute("ALTER TABLE t DROP COLUMN a")
        connection.execute("INSERT INTO t VALUES (4, 'four')")
        connection.execute("UPDATE t SET b = 'two' WHERE id = 2")
    any_database.execute(
        "ALTER TABLE t RENAME COLUMN b TO c",
        "INSERT INTO t VALUES (5, 'five')",
        "ALTER TABLE t ALTER id TYPE bigint, ALTER c TYPE varchar(100)",
        "INSERT INTO t VALUES (6, 'six')",
        "ALTER TABLE t RENAME TO renamed",
        "INSERT INTO renamed VALUES (7, 'seven')",
    )
    messages = recorder.messages()
    rows = decoded(session, messages)
    assert [
        {name: value for name, value in row.items() if not name.startswith("_")}
        for row in (*rows.of_table["t"], *rows.of_table["renamed"])
    ] == [
        {"id": 1, "a": 1},
        {"id": 2, "a": 2},
        {"id": 3, "a": 3, "b": "three"},
        {"id": 4, "b": "four"},
        {"id": 2, "b": "two"},
        {"id": 5, "c": "five"},
        {"id": 6, "c": "six"},
        {"id": 7, "c": "seven"},
    ]
    # Two forms that came up in one transaction have versions of their own.
    versions = [*rows.versions["t"], *rows.versions["renamed"]]
    assert versions == sorted(versions)
    assert len(set(versions)) == 6
    split_everywhere(session, messages, rows)


def test_a_table_that_is_recreated(database: Database, newest: Session) -> None:
    database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    recorder = Recorder(database)
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t VALUES (1, 'old')",
        "DROP TABLE t",
        "CREATE TABLE t (v text, id int PRIMARY KEY)",
        "INSERT INTO t VALUES ('new', 2)",
    )
    rows = decode_pieces(Decoder(describer(newest)), [recorder.messages()])
    assert pick(rows.of_table["t"], "id", "v") == [(1, "old"), (2, "new")]


def test_replica_identity_that_changes(database: Database, newest: Session) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int)", "CREATE PUBLICATION p FOR TABLE t"
    )
    recorder = Recorder(database)
    with database.connect() as connection, connection.transaction():
        connection.execute("INSERT INTO t VALUES (1, 1)")
        connection.execute("ALTER TABLE t REPLICA IDENTITY FULL")
        connection.execute("UPDATE t SET v = 2")
        connection.execute("ALTER TABLE t REPLICA IDENTITY DEFAULT")
        connection.execute("UPDATE t SET v = 3")
        connection.execute("DELETE FROM t")
    rows = decoded(newest, recorder.messages(), {"t": ("id",)}).of_table["t"]
    assert pick(rows, "_change_type", "id", "v", "_old") == [
        ("insert", 1, 1, None),
        ("update", 1, 2, None),
        ("update", 1, 3, None),
        ("delete", 1, None, None),
    ]


@pytest.mark.parametrize("via_root", [True, False])
def test_partitions(any_database: Database, session: Session, via_root: bool) -> None:
    any_database.execute(
        "CREATE TABLE part (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE part_low PARTITION OF part FOR VALUES FROM (0) TO (100)",
        # The same columns in another order, with one dropped.
        "CREATE TABLE part_high (gone int, v text, id int PRIMARY KEY)",
        "ALTER TABLE part_high DROP COLUMN gone",
        "ALTER TABLE part ATTACH PARTITION part_high FOR VALUES FROM (100) TO (200)",
        f"CREATE PUBLICATION p FOR TABLE part WITH (publish_via_partition_root = {via_root})",
    )
    recorder = Recorder(any_database)
    any_database.execute(
        "INSERT INTO part VALUES (1, 'low'), (101, 'high')",
        "UPDATE part SET v = v || '!'",
        "UPDATE part SET id = 150 WHERE id = 1",
        "UPDATE part SET id = 151 WHERE id = 150",
        "DELETE FROM part WHERE id = 101",
        "TRUNCATE part",
    )
    rows = decoded(session, recorder.messages()).of_table
    if via_root:
        assert list(rows) == ["part"]
        assert pick(rows["part"], "_change_type", "id", "v", "_old") == [
            ("insert", 1, "low", None),
            ("insert", 101, "high", None),
            ("update", 1, "low!", None),
            ("update", 101, "high!", None),
            ("delete", 1, None, None),
            ("insert", 150, "low!", None),
            ("update", 151, "low!", {"id": 150}),
            ("delete", 101, None, None),
            ("truncate", None, None, None),
        ]
    else:
        assert set(rows) == {"part_low", "part_high"}
        assert kinds(rows["part_low"]) == ["insert", "update", "delete", "truncate"]
        assert pick(rows["part_high"], "_change_type", "id", "v", "_old") == [
            ("insert", 101, "high", None),
            ("update", 101, "high!", None),
            ("insert", 150, "low!", None),
            ("update", 151, "low!", {"id": 150}),
            ("delete", 101, None, None),
            ("truncate", None, None, None),
        ]


def test_column_lists_and_row_filters(any_database: Database, session: Session) -> None:
    if any_database.server.version < 15:
        any_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        return  # neither exists there
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, secret text, v text, n int)",
        "CREATE PUBLICATION p FOR TABLE t (v, id) WHERE (id < 100)",
    )
    recorder = Recorder(any_database)
    any_database.execute(
        "INSERT INTO t VALUES (1, 's', 'one', 1), (500, 's', 'hidden', 1)",
        "UPDATE t SET secret = 'changed' WHERE id = 1",
        # Out of the filter, and into it: a delete, and an insert.
        "UPDATE t SET id = 200 WHERE id = 1",
        "UPDATE t SET id = 50 WHERE id = 500",
        "DELETE FROM t",
    )
    rows = decoded(session, recorder.messages()).of_table["t"]
    assert pick(rows, "_change_type", "id", "v") == [
        ("insert", 1, "one"),
        ("update", 1, "one"),
        ("delete", 1, None),
        ("insert", 50, "hidden"),
        ("delete", 50, None),
    ]
    assert "secret" not in rows[0]


# -- hand-overs -----------------------------------------------------------------------------------


def split_everywhere(session: Session, messages: Sequence[bytes], whole: Rows) -> None:
    """The same rows come out wherever the stream is cut."""
    describe = describer(session)
    cuts = [[messages[:at], messages[at:]] for at in range(1, len(messages))]
    cuts += [
        [messages[at : at + size] for at in range(0, len(messages), size)]
        for size in (1, 2, 3, 5, 7)
    ]
    for cut in cuts:
        rows = decode_pieces(Decoder(describe), cut)
        assert rows == whole


def test_a_stream_cut_at_every_border(any_database: Database, session: Session) -> None:
    any_database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text)",
        "CREATE TABLE b (id int, v text)",
        "ALTER TABLE b REPLICA IDENTITY FULL",
        "CREATE PUBLICATION p FOR TABLE a, b",
    )
    recorder = Recorder(any_database)
    any_database.execute(
        "INSERT INTO a VALUES (1, 'x')",
        "INSERT INTO b SELECT i, 'b' FROM generate_series(1, 3) i",
    )
    with any_database.connect() as connection, connection.transaction():
        connection.execute(f"UPDATE a SET v = '{noise(BIG)}'")
        connection.execute("UPDATE a SET id = 2")
        connection.execute("UPDATE b SET v = 'c'")
        connection.execute("TRUNCATE b, a")
        connection.execute("INSERT INTO a SELECT i, 'y' FROM generate_series(1, 4) i")
        connection.execute("ALTER TABLE a ADD w int")
        connection.execute("INSERT INTO a VALUES (9, 'y', 5)")
        connection.execute("DELETE FROM a WHERE id < 3")
    any_database.execute("INSERT INTO a VALUES (10, 'end', 0)", "TRUNCATE b")
    messages = recorder.messages()
    split_everywhere(session, messages, decoded(session, messages))


def test_random_transactions(any_database: Database, session: Session) -> None:
    """Many tables, random changes, random cuts: the same as the decoder that goes row by row."""
    chance = random.Random(any_database.server.version)
    forms = ["default", "index", "full with key", "full without key"]
    keys: dict[str, Sequence[str]] = {}
    for number, identity in enumerate(forms * 2):
        name = f"t{number}"
        statements, key = IDENTITIES[identity]
        keys[name] = key
        any_database.execute(
            f"CREATE TABLE {name} (a int, b text, c text, d int, big text)",
            *(
                statement.replace("TABLE t ", f"TABLE {name} ")
                .replace("ON t ", f"ON {name} ")
                .replace("INDEX i", f"INDEX i{number}")
                for statement in statements
            ),
        )
    any_database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    recorder = Recorder(any_database)
    fresh = iter(range(1, 10**9))
    with any_database.connect() as connection:
        for _ in range(60):
            with connection.transaction(force_rollback=chance.random() < 0.1):
                for _ in range(chance.randrange(1, 12)):
                    random_change(connection, chance, f"t{chance.randrange(8)}", next(fresh))
    messages = recorder.messages()
    whole = decoded(session, messages, keys)
    assert whole.changes > 300
    for _ in range(10):
        cut, at = [], 0
        while at < len(messages):
            size = chance.choice([1, 2, 10, 100])
            cut.append(messages[at : at + size])
            at += size
        assert decode_pieces(Decoder(describer(session)), cut) == whole


def random_change(connection: Session, chance: random.Random, table: str, number: int) -> None:
    big = noise(3000, number) if chance.random() < 0.3 else "small"
    some = f"d % {chance.randrange(2, 6)} = 0"
    kind = chance.choices(
        ["insert", "change", "key", "null", "delete", "truncate"], [40, 30, 10, 10, 8, 2]
    )[0]
    statement = {
        "insert": f"INSERT INTO {table} SELECT i, 'b', 'c' || i, i, '{big}'"
        f" FROM generate_series({number * 10}, {number * 10 + chance.randrange(9)}) i",
        "change": f"UPDATE {table} SET b = 'b{number}' WHERE {some}",
        "key": f"UPDATE {table} SET c = c || '.{number}' WHERE {some}",
        "null": f"UPDATE {table} SET b = NULL, big = CASE WHEN a % 2 = 0 THEN NULL ELSE big END"
        f" WHERE {some}",
        "delete": f"DELETE FROM {table} WHERE {some}",
        "truncate": f"TRUNCATE {table}",
    }[kind]
    connection.execute(statement)


def test_hand_overs_end_behind_commits(any_database: Database) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    with Replication(any_database.uri, application_name="test") as replication:
        slot = f"commits_{any_database.name}"
        start = replication.create_slot(slot).consistent_point
        any_database.execute(
            "INSERT INTO t VALUES (1)",
            "INSERT INTO t SELECT generate_series(2, 4)",
            "INSERT INTO t SELECT generate_series(5, 104)",
        )
        replication.start(slot, start, "p")
        handed_over = ""
        while not handed_over.endswith("C"):
            frames = replication.read(1000, 10)
            assert frames is not None
            letters = [frames.message(place)[:1].decode() for place in range(len(frames))]
            # What begins behind a commit waits, unless nothing else is there.
            assert letters[-1] == "C" or "C" not in letters
            handed_over += "".join(letters)
            if handed_over.count("C") < 3 and handed_over[-1] == "C":
                handed_over += " "
        assert handed_over.replace(" ", "").replace("R", "") == "BIC" + "BIIIC" + f"B{'I' * 100}C"


def test_keepalives_alone_do_not_fill_the_buffer(any_database: Database) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    with Replication(any_database.uri, application_name="test") as replication:
        slot = f"quiet_{any_database.name}"
        start = replication.create_slot(slot).consistent_point
        replication.start(slot, start, "p")
        limit = 100
        for _ in range(limit):
            replication.send_status(ask_for_reply=True)
            assert replication.read(limit, 0.01) is None
        any_database.execute("INSERT INTO t VALUES (1)")
        letters = ""
        while "C" not in letters:
            frames = replication.read(limit, 10)
            assert frames is not None
            letters += "".join(frames.message(place)[:1].decode() for place in range(len(frames)))
        assert letters.replace("R", "") == "BIC"


def test_the_walsender_sends_what_the_function_gives(
    any_database: Database, session: Session
) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, at timestamptz, f float8)",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    recorder = Recorder(any_database)
    with Replication(any_database.uri, application_name="test") as replication:
        slot = f"live_{any_database.name}"
        start = replication.create_slot(slot).consistent_point
        any_database.execute(
            "INSERT INTO t SELECT i, repeat('v', i), now(), i / 3.0 FROM generate_series(1, 500) i",
            "UPDATE t SET v = v || '!' WHERE id % 7 = 0",
        )
        replication.start(slot, start, "p")
        found: list[bytes] = []
        for _ in range(200):
            # A small limit: the first transaction comes in pieces.
            frames = replication.read(10_000, 0.1)
            if frames is not None:
                found += [frames.message(index) for index in range(len(frames))]
            if [message[:1] for message in found].count(b"C") == 2:
                break
        replication.stop()
    # The times of day are printed in the session's time zone: ours is set, as in every session.
    with connect(any_database.uri, application_name="test") as connection:
        options = [part for option in output_options("p").items() for part in option]
        rows = connection.execute(
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, VARIADIC %s)",
            [f"recorder_{any_database.name}", options],
        ).fetchall()
    assert found == [bytes(row[0]) for row in rows]
    del recorder


# -- what must not be in a stream -----------------------------------------------------------------


def test_what_the_protocol_does_not_allow(newest: Session) -> None:
    decoder = Decoder(describer(newest))
    with pytest.raises(ProtocolError, match="unknown message of type 'S'"):
        decoder.decode(frames_of([b"S1234"]))
    insert = b"I" + (99).to_bytes(4, "big") + b"N\0\1t\0\0\0\1x"
    with pytest.raises(ProtocolError, match="outside any transaction"):
        decoder.decode(frames_of([insert]))
    begin = b"B" + bytes(20)
    with pytest.raises(ProtocolError, match="before its description"):
        decoder.decode(frames_of([begin, insert]))
    relation = b"R" + (99).to_bytes(4, "big") + b"public\0t\0d\0\1\1a\0\0\0\0\x19\xff\xff\xff\xff"
    binary = b"I" + insert[1:8] + b"b\0\0\0\1x"
    with pytest.raises(ProtocolError, match="format that was not asked for"):
        Decoder(describer(newest)).decode(frames_of([begin, relation, binary]))
    rows = decode_pieces(Decoder(describer(newest)), [[begin, relation, insert]])
    assert rows.of_table["t"][0]["a"] == "x"


def test_a_reset_forgets_the_open_transaction(database: Database, newest: Session) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    recorder = Recorder(database)
    database.execute("INSERT INTO t VALUES (1), (2), (3)")
    messages = recorder.messages()
    decoder = Decoder(describer(newest))
    assert decoder.decode(frames_of(messages[:4])).in_transaction
    decoder.reset()
    again = decoder.decode(frames_of(messages))
    assert not again.in_transaction
    assert pick(again.tables[0].batch.to_pylist(), "id", "_seq") == [(1, 0), (2, 1), (3, 2)]
    assert again.tables[0].schema.replica_identity is ReplicaIdentity.DEFAULT
