"""What may happen to a table: one case a table, told in SQL.

``copied``: before the pipeline first runs. ``backlog``: while it is stopped, all of it applied at
once. ``live``: while it runs. Statements are transactions of their own, tuples are transactions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.lake.equality import ALL_ROWS, CURRENT, NOT_DELETED, TOLD_LAST

__all__ = ["BETWEEN", "GROUPS", "TOLD", "Case", "Statements"]

Statements = tuple[str | tuple[str, ...], ...]

BETWEEN = "ddl_between"
"""The table whose form changes between its copy and what comes after."""


@dataclass(frozen=True, slots=True)
class Case:
    table: str
    columns: str
    copied: Statements = ()
    backlog: Statements = ()
    live: Statements = ()
    plan: Mapping[str, str] = field(default_factory=dict, hash=False)
    rows: str = ALL_ROWS
    """Which of the lake's rows are to be as the source's."""
    keeps: tuple[str, ...] = ()
    """Columns that the lake keeps, after the live part."""
    becomes: str | None = None
    """The table's name after the live part."""
    copied_again: bool = False
    """Whether it may be: there is no way without, or none if changes of two keys come at once."""


def big(seed: str) -> str:
    """A text that lies outside of the row, where the column's storage says so."""
    return f"repeat(md5('{seed}'), 100)"


_ROWS = "INSERT INTO {} SELECT i, 'v' || i, i FROM generate_series(1, 6) i"
_PLAIN = "id int PRIMARY KEY, v text, n int"


def plain(
    table: str,
    backlog: Statements,
    live: Statements,
    *,
    plan: Mapping[str, str] | None = None,
    rows: str = ALL_ROWS,
    keeps: tuple[str, ...] = (),
    becomes: str | None = None,
    copied_again: bool = False,
) -> Case:
    """A table with a key, a text, a number and six rows."""
    return Case(
        table,
        _PLAIN,
        (_ROWS.format(table),),
        backlog,
        live,
        plan or {},
        rows,
        keeps,
        becomes,
        copied_again,
    )


NET_CHANGES = (
    plain(
        "key_chain",
        (
            ("UPDATE key_chain SET id = 10 WHERE id = 1", "UPDATE key_chain SET id = 11, n = 0"
             " WHERE id = 10", "UPDATE key_chain SET id = 12, v = 'end' WHERE id = 11"),
            # Two rows exchange their keys.
            ("UPDATE key_chain SET id = -2 WHERE id = 2", "UPDATE key_chain SET id = 2 WHERE id ="
             " 3", "UPDATE key_chain SET id = 3 WHERE id = -2"),
            "UPDATE key_chain SET id = 13 WHERE id = 12",
            "UPDATE key_chain SET id = 12 WHERE id = 4",
        ),
        (
            "UPDATE key_chain SET id = id + 100",
            "UPDATE key_chain SET id = id - 99",
            ("DELETE FROM key_chain WHERE id = 14", "UPDATE key_chain SET id = 14 WHERE id = 13"),
        ),
    ),
    plain(
        "born_again",
        (
            ("DELETE FROM born_again WHERE id = 1", "INSERT INTO born_again VALUES (1, 'b', 1)"),
            "DELETE FROM born_again WHERE id = 2",
            "INSERT INTO born_again VALUES (2, 'again', NULL)",
            "DELETE FROM born_again WHERE id IN (2, 3)",
            ("INSERT INTO born_again VALUES (3, 'x', 3)", "DELETE FROM born_again WHERE id = 3"),
        ),
        (
            ("DELETE FROM born_again", "INSERT INTO born_again VALUES (1, NULL, 7), (3, 'c', 3)"),
            ("UPDATE born_again SET id = 2 WHERE id = 1", "INSERT INTO born_again VALUES (1)"),
        ),
    ),
    plain(
        "new_and_changed",
        (
            "INSERT INTO new_and_changed VALUES (20, 'new', 1), (21, 'new', 1), (22, 'new', 1)",
            "UPDATE new_and_changed SET n = n + 1 WHERE id >= 20",
            "UPDATE new_and_changed SET id = 30 WHERE id = 21",
            "DELETE FROM new_and_changed WHERE id = 22",
        ),
        (
            ("INSERT INTO new_and_changed VALUES (40, 'n', 1)", "UPDATE new_and_changed SET v = 'o'"
             " WHERE id = 40", "UPDATE new_and_changed SET id = 41 WHERE id = 40"),
        ),
    ),
    Case(
        "toast",
        "id int PRIMARY KEY, body text, other text, n int",
        (
            "ALTER TABLE toast ALTER body SET STORAGE EXTERNAL, ALTER other SET STORAGE EXTERNAL",
            f"INSERT INTO toast SELECT i, repeat(md5(i::text), 100), {big('o')}, i"
            " FROM generate_series(1, 9) i",
        ),
        (
            "UPDATE toast SET n = 0 WHERE id = 1",
            "UPDATE toast SET id = 102, n = 0 WHERE id = 2",
            f"UPDATE toast SET other = {big('p')} WHERE id = 3",
            "UPDATE toast SET id = 103, n = 1 WHERE id = 3",
            f"INSERT INTO toast VALUES (10, {big('ten')}, {big('q')}, 10)",
            "UPDATE toast SET n = 11 WHERE id = 10",
            "UPDATE toast SET id = 110 WHERE id = 10",
            ("UPDATE toast SET id = 104 WHERE id = 4", "UPDATE toast SET id = 204 WHERE id = 104",
             "UPDATE toast SET n = -4 WHERE id = 204"),
            # Another row under the key of one that went elsewhere.
            ("UPDATE toast SET id = 105 WHERE id = 5", "UPDATE toast SET id = 5 WHERE id = 6"),
            ("DELETE FROM toast WHERE id = 7", f"INSERT INTO toast VALUES (7, {big('7')}, '', 7)"),
            "UPDATE toast SET n = 8, body = NULL WHERE id = 8",
        ),
        (
            "UPDATE toast SET n = n + 1",
            "UPDATE toast SET id = id + 1000 WHERE id > 100",
            "UPDATE toast SET other = 'short' WHERE id < 4",
        ),
    ),
    Case(
        "identity_full",
        "id int PRIMARY KEY, body text, n int",
        (
            "ALTER TABLE identity_full ALTER body SET STORAGE EXTERNAL, REPLICA IDENTITY FULL",
            f"INSERT INTO identity_full SELECT i, {big('f')}, i FROM generate_series(1, 5) i",
        ),
        (
            "UPDATE identity_full SET n = 0 WHERE id < 3",
            "UPDATE identity_full SET id = 10 WHERE id = 1",
            "DELETE FROM identity_full WHERE id = 2",
        ),
        ("UPDATE identity_full SET id = id + 1 WHERE id = 10", "DELETE FROM identity_full"
         " WHERE n = 3"),
    ),
    Case(
        "keyless",
        "v text, n int",
        (
            "ALTER TABLE keyless REPLICA IDENTITY FULL",
            "INSERT INTO keyless SELECT 'twin', i % 3 FROM generate_series(1, 12) i",
            "INSERT INTO keyless VALUES (NULL, NULL), (NULL, NULL), (NULL, NULL)",
        ),
        (
            "DELETE FROM keyless WHERE ctid IN (SELECT ctid FROM keyless WHERE n = 1 LIMIT 2)",
            "DELETE FROM keyless WHERE ctid IN (SELECT ctid FROM keyless WHERE n IS NULL LIMIT 1)",
            "UPDATE keyless SET v = 'one' WHERE ctid ="
            " (SELECT ctid FROM keyless WHERE n = 2 LIMIT 1)",
            ("INSERT INTO keyless VALUES ('gone', 0), ('gone', 0)",
             "DELETE FROM keyless WHERE ctid = (SELECT max(ctid) FROM keyless WHERE v = 'gone')"),
            "UPDATE keyless SET n = 0 WHERE n = 0",
        ),
        (
            "UPDATE keyless SET n = n + 1",
            "DELETE FROM keyless WHERE ctid IN (SELECT ctid FROM keyless WHERE n = 1 LIMIT 3)",
            "INSERT INTO keyless SELECT * FROM keyless",
        ),
    ),
    Case(
        "append_only",
        "v text, n int",
        ("INSERT INTO append_only VALUES ('a', 1), ('a', 1)",),
        ("INSERT INTO append_only VALUES ('a', 1), ('b', 2)",),
        (
            "INSERT INTO append_only VALUES ('c', NULL)",
            "TRUNCATE append_only",
            "INSERT INTO append_only VALUES ('d', 1), ('d', 1)",
        ),
    ),
    plain(
        "emptied",
        (
            "UPDATE emptied SET n = 7 WHERE id = 1",
            ("INSERT INTO emptied VALUES (7, 'before', 7)", "TRUNCATE emptied",
             "INSERT INTO emptied VALUES (1, 'after', 1), (8, 'after', 8)"),
            "UPDATE emptied SET id = 9 WHERE id = 8",
        ),
        ("TRUNCATE emptied", "INSERT INTO emptied VALUES (2, 'x', 2)", "TRUNCATE emptied",
         "INSERT INTO emptied VALUES (3, 'y', 3)", "UPDATE emptied SET n = 4"),
    ),
    Case(
        "keyless_emptied",
        "v text, n int",
        (
            "ALTER TABLE keyless_emptied REPLICA IDENTITY FULL",
            "INSERT INTO keyless_emptied VALUES ('a', 1), ('a', 1), ('b', 2)",
        ),
        (
            "DELETE FROM keyless_emptied WHERE v = 'b'",
            ("INSERT INTO keyless_emptied VALUES ('a', 1)", "TRUNCATE keyless_emptied",
             "INSERT INTO keyless_emptied VALUES ('a', 1), ('a', 1), ('c', 3)"),
            "DELETE FROM keyless_emptied WHERE v = 'c'",
        ),
        ("UPDATE keyless_emptied SET n = 2",),
    ),
    Case(
        "exact",
        "id int PRIMARY KEY, n numeric, p numeric(39,1), at timestamptz, d date",
        ("INSERT INTO exact VALUES (1, 1.5, 2.5, 'now', 'today'), (2, 'NaN', 0, 'infinity',"
         " '-infinity')",),
        (
            "INSERT INTO exact VALUES (3, 123456789012345678901234567890123456789,"
            " 99999999999999999999999999999999999999.9, '-infinity', 'infinity')",
            "UPDATE exact SET n = 'Infinity' WHERE id = 1",
            "UPDATE exact SET n = 1 WHERE id = 2",
            "INSERT INTO exact VALUES (4, '-Infinity', 'NaN', '4713-01-01 BC', '4000-01-01 BC')",
            "UPDATE exact SET id = 40 WHERE id = 4",
        ),
        (
            "UPDATE exact SET n = n / 3, at = 'infinity' WHERE id = 3",
            "UPDATE exact SET n = 0.0000000000000000001 WHERE id = 1",
            "UPDATE exact SET p = 5, d = '2026-01-01' WHERE id = 40",
        ),
    ),
    Case(
        "exact_key",
        "k numeric PRIMARY KEY, v text",
        ("INSERT INTO exact_key VALUES (1, 'one'), ('1e25', 'large'), ('NaN', 'nan')",),
        (
            "UPDATE exact_key SET v = 'huge' WHERE k = '1e25'",
            "UPDATE exact_key SET k = '2e25' WHERE k = '1e25'",
            "INSERT INTO exact_key VALUES ('3e25', 'three')",
            "DELETE FROM exact_key WHERE k = 'NaN'",
        ),
        (
            "UPDATE exact_key SET k = 3 WHERE k = '3e25'",
            "UPDATE exact_key SET k = '1e26' WHERE k = 1",
            "DELETE FROM exact_key WHERE k = '2e25'",
        ),
    ),
    Case(
        "exact_keyless",
        "n numeric, v text",
        (
            "ALTER TABLE exact_keyless REPLICA IDENTITY FULL",
            "INSERT INTO exact_keyless VALUES ('1e25', 'a'), ('1e25', 'a'), ('2e25', 'a')",
        ),
        (
            "DELETE FROM exact_keyless WHERE ctid = (SELECT min(ctid) FROM exact_keyless)",
            "INSERT INTO exact_keyless VALUES ('3e25', 'a'), (NULL, 'a')",
        ),
        ("UPDATE exact_keyless SET n = '4e25' WHERE n = '2e25'", "DELETE FROM exact_keyless"
         " WHERE n = '3e25'"),
    ),
)  # fmt: skip


def _busy(table: str) -> tuple[Statements, Statements]:
    """All kinds of changes to a table with a key."""
    return (
        (
            f"INSERT INTO {table} VALUES (7, 'seven', 7), (8, 'eight', 8)",
            f"UPDATE {table} SET v = 'changed' WHERE id IN (1, 7)",
            (f"UPDATE {table} SET n = 0 WHERE id = 2", f"UPDATE {table} SET n = 1 WHERE id = 2"),
            f"UPDATE {table} SET id = 30 WHERE id = 3",
            f"DELETE FROM {table} WHERE id = 8",
            (f"DELETE FROM {table} WHERE id = 4", f"INSERT INTO {table} VALUES (4, 'new', 4)"),
            f"DELETE FROM {table} WHERE id = 5",
            f"INSERT INTO {table} VALUES (5, 'back', 5)",
        ),
        (
            f"ALTER TABLE {table} ADD COLUMN extra int DEFAULT 3",
            f"UPDATE {table} SET v = 'live', extra = 4 WHERE id = 1",
            f"ALTER TABLE {table} RENAME COLUMN n TO m",
            (f"INSERT INTO {table} VALUES (9, 'nine', 9, 9)", f"TRUNCATE {table}",
             f"INSERT INTO {table} VALUES (1, 'first', 1, 1), (10, 'ten', 10, NULL)"),
            f"UPDATE {table} SET id = 11 WHERE id = 10",
        ),
    )  # fmt: skip


MODES = (
    plain("soft", *_busy("soft"), plan={"mode": "soft_delete"}, rows=NOT_DELETED),
    plain("versions", *_busy("versions"), plan={"mode": "scd2"}, rows=CURRENT),
    plain(
        "history",
        *_busy("history"),
        plan={"mode": "history"},
        rows=TOLD_LAST,
    ),
    Case(
        "soft_keyless",
        "id int, v text",
        (
            "ALTER TABLE soft_keyless REPLICA IDENTITY FULL",
            "INSERT INTO soft_keyless VALUES (1, 'a'), (1, 'a'), (2, 'b')",
        ),
        (
            "DELETE FROM soft_keyless WHERE ctid = (SELECT min(ctid) FROM soft_keyless)",
            "INSERT INTO soft_keyless VALUES (1, 'a'), (3, 'c')",
            "UPDATE soft_keyless SET v = 'd' WHERE id = 3",
        ),
        ("DELETE FROM soft_keyless WHERE id = 1", "TRUNCATE soft_keyless", "INSERT INTO"
         " soft_keyless VALUES (4, 'e'), (4, 'e')"),
        {"mode": "soft_delete"},
        NOT_DELETED,
    ),
    Case(
        "mixed",
        "id int PRIMARY KEY, v text, n int, body text",
        (
            "ALTER TABLE mixed ALTER body SET STORAGE EXTERNAL",
            f"INSERT INTO mixed SELECT i, 'v', i, {big('v')} FROM generate_series(1, 8) i",
        ),
        (
            "UPDATE mixed SET n = 0 WHERE id < 3",
            "UPDATE mixed SET id = 10 WHERE id = 3",
            "DELETE FROM mixed WHERE id = 4",
            f"INSERT INTO mixed VALUES (4, 'again', 4, {big('w')}), (11, 'new', 11, NULL)",
            "UPDATE mixed SET n = 5 WHERE id = 4",
        ),
        (
            "UPDATE mixed SET id = id + 100, n = 9 WHERE id > 5",
            "ALTER TABLE mixed ADD COLUMN extra text DEFAULT 'x'",
            "INSERT INTO mixed VALUES (12, 'new', 12, 'short', 'y')",
            "ALTER TABLE mixed RENAME COLUMN v TO w",
            "UPDATE mixed SET w = 'w' WHERE id = 12",
            "ALTER TABLE mixed DROP COLUMN n",
            "DELETE FROM mixed WHERE id = 2",
        ),
    ),
    plain(
        "emptied_often",
        ("UPDATE emptied_often SET n = 9 WHERE id = 1",
         ("TRUNCATE emptied_often", "INSERT INTO emptied_often VALUES (1, 'x', 1), (7, 'y', 7)")),
        ("INSERT INTO emptied_often VALUES (8, 'z', 8)", "TRUNCATE emptied_often",
         "INSERT INTO emptied_often VALUES (2, 'z', 2)"),
    ),
)  # fmt: skip

FORMS = (
    plain(
        "added",
        ("INSERT INTO added VALUES (7, 'seven', 7)", "ALTER TABLE added ADD COLUMN a text",
         "UPDATE added SET a = 'a' WHERE id = 1"),
        ("ALTER TABLE added ADD COLUMN b bigint", "INSERT INTO added VALUES (8, 'e', 8, 'a', 9)"),
    ),
    plain(
        "filled",
        (
            "UPDATE filled SET n = 0 WHERE id = 1",
            "ALTER TABLE filled ADD COLUMN a numeric(8,2) DEFAULT 1.25,"
            " ADD COLUMN b text NOT NULL DEFAULT 'it''s'",
            "ALTER TABLE filled ALTER COLUMN b SET DEFAULT 'other'",
            "INSERT INTO filled (id) VALUES (7)",
            "UPDATE filled SET a = NULL WHERE id = 2",
        ),
        ("ALTER TABLE filled ADD COLUMN c timestamptz DEFAULT now()",),
    ),
    plain(
        "filled_anew",
        ("ALTER TABLE filled_anew ADD COLUMN a double precision DEFAULT random()",
         "UPDATE filled_anew SET n = 0 WHERE id = 1"),
        ("ALTER TABLE filled_anew ADD COLUMN b uuid DEFAULT gen_random_uuid()",),
        copied_again=True,
    ),
    plain(
        "dropped",
        ("UPDATE dropped SET v = 'seen' WHERE id = 1", "ALTER TABLE dropped DROP COLUMN v",
         "INSERT INTO dropped VALUES (7, 7)"),
        ("ALTER TABLE dropped DROP COLUMN n",),
    ),
    plain(
        "kept",
        ("INSERT INTO kept VALUES (7, 'seven', 7)",),
        ("ALTER TABLE kept DROP COLUMN v", "INSERT INTO kept VALUES (8, 8)"),
        plan={"on_column_dropped": "keep"},
        keeps=("v",),
    ),
    plain(
        "made_anew",
        ("ALTER TABLE made_anew DROP COLUMN v", "ALTER TABLE made_anew ADD COLUMN v int DEFAULT 4",
         "UPDATE made_anew SET v = 5 WHERE id = 1"),
        ("ALTER TABLE made_anew DROP COLUMN n, ADD COLUMN n int", "UPDATE made_anew SET n = 6"
         " WHERE id = 1"),
    ),
    plain(
        "renamed",
        ("UPDATE renamed SET v = 'old name' WHERE id = 1", "ALTER TABLE renamed RENAME v TO w",
         "UPDATE renamed SET w = 'new name' WHERE id = 2"),
        ("ALTER TABLE renamed RENAME id TO key", "UPDATE renamed SET key = 20 WHERE key = 2"),
    ),
    Case(
        "swapped",
        "id int PRIMARY KEY, a text, b text, x numeric, y numeric",
        ("INSERT INTO swapped SELECT i, 'a', 'b', 'NaN', i FROM generate_series(1, 4) i",),
        (
            "UPDATE swapped SET a = 'first a' WHERE id = 1",
            ("ALTER TABLE swapped RENAME a TO c", "ALTER TABLE swapped RENAME b TO a",
             "ALTER TABLE swapped RENAME c TO b"),
            "UPDATE swapped SET a = 'was b' WHERE id = 2",
        ),
        (
            ("ALTER TABLE swapped RENAME x TO z", "ALTER TABLE swapped RENAME y TO x",
             "ALTER TABLE swapped RENAME z TO y"),
            "UPDATE swapped SET x = 'Infinity' WHERE id = 3",
        ),
    ),
    Case(
        "widened",
        "id int PRIMARY KEY, n numeric(10,2), v varchar(10), w varchar(5)",
        ("INSERT INTO widened SELECT i, i + 0.25, 'v' || i, 'w' FROM generate_series(1, 4) i",),
        (
            "UPDATE widened SET n = 99999999.99 WHERE id = 1",
            "ALTER TABLE widened ALTER n TYPE numeric(20,2), ALTER v TYPE varchar(50)",
            f"UPDATE widened SET n = 999999999999.99, v = {big('x')}::varchar(50) WHERE id = 2",
        ),
        ("ALTER TABLE widened ALTER v TYPE text, ALTER w TYPE varchar",
         f"UPDATE widened SET v = {big('y')}, w = 'longer text' WHERE id = 3"),
    ),
    plain(
        "rewritten",
        ("UPDATE rewritten SET n = 0 WHERE id = 1",
         "ALTER TABLE rewritten ALTER n TYPE bigint USING n * 10",
         "UPDATE rewritten SET n = 5000000000 WHERE id = 2"),
        ("ALTER TABLE rewritten ALTER v TYPE int USING length(v)",),
        copied_again=True,
    ),
    plain(
        "many_at_once",
        (
            "INSERT INTO many_at_once VALUES (7, 'seven', 7)",
            "ALTER TABLE many_at_once ADD COLUMN a int DEFAULT 1",
            "UPDATE many_at_once SET a = 2 WHERE id = 1",
            "ALTER TABLE many_at_once RENAME v TO text",
            "UPDATE many_at_once SET text = 'renamed' WHERE id = 2",
            "ALTER TABLE many_at_once DROP COLUMN n",
            "DELETE FROM many_at_once WHERE id = 3",
            "ALTER TABLE many_at_once ADD COLUMN n varchar(3) DEFAULT 'n'",
            "INSERT INTO many_at_once VALUES (8, 'eight', 8, 'x')",
            "ALTER TABLE many_at_once ALTER n TYPE varchar(9)",
            "UPDATE many_at_once SET n = 'nine long' WHERE id = 4",
            "UPDATE many_at_once SET id = 50 WHERE id = 5",
            "TRUNCATE many_at_once",
            "INSERT INTO many_at_once VALUES (1, 'one', 1, 'one'), (2, 'two', 2, NULL)",
            "ALTER TABLE many_at_once DROP COLUMN a",
            "UPDATE many_at_once SET text = 'last'",
        ),
        ("ALTER TABLE many_at_once ADD COLUMN z bool DEFAULT true",
         "ALTER TABLE many_at_once RENAME z TO zz", "INSERT INTO many_at_once VALUES (3)"),
    ),
    plain(
        "mid_transaction",
        (
            (
                "UPDATE mid_transaction SET n = 10 WHERE id = 1",
                "ALTER TABLE mid_transaction ADD COLUMN a int DEFAULT 5",
                "UPDATE mid_transaction SET a = 6 WHERE id = 2",
                "ALTER TABLE mid_transaction RENAME n TO m",
                "INSERT INTO mid_transaction VALUES (7, 'seven', 7, 7)",
                "ALTER TABLE mid_transaction DROP COLUMN v",
                "DELETE FROM mid_transaction WHERE id = 3",
            ),
        ),
        (
            (
                "UPDATE mid_transaction SET m = 11 WHERE id = 1",
                "ALTER TABLE mid_transaction ADD COLUMN b text DEFAULT 'b'",
                "INSERT INTO mid_transaction VALUES (8, 8, 8, 'c')",
            ),
        ),
    ),
    plain(
        BETWEEN,
        (
            f"UPDATE {BETWEEN} SET n = 0 WHERE id = 1",
            f"ALTER TABLE {BETWEEN} ADD COLUMN a int DEFAULT 8",
            f"ALTER TABLE {BETWEEN} RENAME v TO w",
            f"UPDATE {BETWEEN} SET w = 'w' WHERE id = 2",
            f"INSERT INTO {BETWEEN} VALUES (7, 'seven', 7, 7)",
        ),
        (f"DELETE FROM {BETWEEN} WHERE id = 7",),
    ),
    Case(
        "key_changed",
        "id int PRIMARY KEY, k int NOT NULL, v text",
        ("INSERT INTO key_changed SELECT i, i * 10, 'v' FROM generate_series(1, 5) i",),
        ("UPDATE key_changed SET v = 'w', id = 20 WHERE id = 2",),
        (
            "UPDATE key_changed SET v = 'x' WHERE id = 1",
            "ALTER TABLE key_changed DROP CONSTRAINT key_changed_pkey, ADD PRIMARY KEY (k)",
            "UPDATE key_changed SET id = 1 WHERE k IN (20, 30)",
            "UPDATE key_changed SET k = 31 WHERE k = 30",
            "DELETE FROM key_changed WHERE k = 40",
        ),
        copied_again=True,
    ),
    Case(
        "key_lost",
        "id int PRIMARY KEY, v text",
        ("INSERT INTO key_lost SELECT i, 'v' FROM generate_series(1, 4) i",),
        (
            "UPDATE key_lost SET v = 'w' WHERE id = 1",
            "ALTER TABLE key_lost DROP CONSTRAINT key_lost_pkey, ALTER id DROP NOT NULL,"
            " REPLICA IDENTITY FULL",
            "INSERT INTO key_lost VALUES (1, 'w'), (2, 'v'), (2, 'v')",
            "DELETE FROM key_lost WHERE ctid = (SELECT max(ctid) FROM key_lost WHERE id = 2)",
            "UPDATE key_lost SET id = NULL WHERE id = 3",
        ),
        ("INSERT INTO key_lost SELECT * FROM key_lost",),
        copied_again=True,
    ),
    plain(
        "former_name",
        ("UPDATE former_name SET n = 0 WHERE id = 1",),
        ("UPDATE former_name SET n = 1 WHERE id = 2", "ALTER TABLE former_name RENAME TO new_name",
         "UPDATE new_name SET n = 2 WHERE id = 3", "DELETE FROM new_name WHERE id = 4"),
        becomes="new_name",
    ),
    Case(
        "nullable",
        "id int PRIMARY KEY, v text NOT NULL, n int",
        ("INSERT INTO nullable SELECT i, 'v', i FROM generate_series(1, 4) i",),
        (
            "ALTER TABLE nullable ALTER v DROP NOT NULL, ALTER n SET NOT NULL",
            "UPDATE nullable SET v = NULL WHERE id = 1",
        ),
        ("UPDATE nullable SET v = '' WHERE v IS NULL", "ALTER TABLE nullable ALTER v SET NOT NULL,"
         " ALTER n DROP NOT NULL", "INSERT INTO nullable VALUES (5, 'x', NULL)"),
    ),
)  # fmt: skip

GROUPS: Mapping[str, tuple[Case, ...]] = {
    "net changes": NET_CHANGES,
    "modes": MODES,
    "forms": FORMS,
}

TOLD = ("soft", "versions", "history", "soft_keyless")
"""Tables of which each change is noted in the source, too; they have columns id and v."""
