"""Tables that nobody would make, through whole pipelines into a lake: values that are equal and
yet not the same, columns with names that walflow uses itself, tables without columns."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

import walflow
from tests.conftest import Database
from tests.lake.equality import (
    ALL_ROWS,
    CURRENT,
    NOT_DELETED,
    Lake,
    Sought,
    differences,
)
from tests.pipeline.capturing import wait_for
from tests.pipeline.running import WAIT, catch_up, phase_of, running, settings_for, state_of
from walflow.model import Phase, quote_identifier
from walflow.pipeline.pipeline import Pipeline
from walflow.source.catalog.published_tables import is_reserved

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@dataclass(frozen=True, slots=True)
class Story:
    """A table, and what happens to it: before the copy, while the pipeline is stopped (all of it is
    one batch), while it runs."""

    table: str
    columns: str
    copied: tuple[str, ...] = ()
    backlog: tuple[str, ...] = ()
    live: tuple[str, ...] = ()
    plan: dict[str, str] = field(default_factory=dict)
    rows: str = ALL_ROWS


_LAST = (
    "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY _LSN DESC, _SEQ DESC)"
    " AS newest FROM ({{}})) WHERE newest = 1 AND _CHANGE_TYPE <> 'delete'"
)
"""Of a history: the newest change of each key, if it left a row."""


def newest_of(key: str) -> str:
    return _LAST.format(key=key)


def tell(
    statements: tuple[str, ...],
    table: str,
    plan: str | None = None,
    rows: str = ALL_ROWS,
    *,
    columns: str,
) -> Story:
    """The statements, in which ``@`` is the table; ``--`` ends what is copied, and the backlog."""
    parts: list[list[str]] = [[], [], []]
    place = 0
    for statement in statements:
        if statement == "--":
            place += 1
        else:
            parts[place].append(statement.replace("@", table))
    mode = {} if plan is None else {"mode": plan}
    copied, backlog, live = map(tuple, parts)
    return Story(table, columns, copied, backlog, live, mode, rows)


# Arrays that differ in their shape alone: Spark holds the same list for all of them.
_SHAPES = ("{a,b}", "{{a,b}}", "[0:1]={a,b}", "{{a},{b}}")
_VALUES = ", ".join(f"('{shape}', {number})" for number, shape in enumerate(_SHAPES))
_ARRAY_KEY = (
    f"INSERT INTO @ VALUES {_VALUES}, ('{{}}', 9)",
    "--",
    "DELETE FROM @ WHERE t = '{{a,b}}'",
    "UPDATE @ SET s = 10 WHERE t = '{a,b}'",
    "UPDATE @ SET t = '{{c,d}}' WHERE t = '[0:1]={a,b}'",
    "INSERT INTO @ VALUES ('{c,d}', 11)",
    "--",
    "DELETE FROM @ WHERE t = '{a,b}'",
    "UPDATE @ SET t = '{{a,b}}', s = 12 WHERE t = '{{a},{b}}'",
    "UPDATE @ SET t = '{d,c}' WHERE t = '{c,d}'",
)
_FULL_ARRAYS = (
    "ALTER TABLE @ REPLICA IDENTITY FULL",
    f"INSERT INTO @ VALUES {_VALUES}",
    "--",
    "DELETE FROM @ WHERE t = '{{a,b}}'",
    "UPDATE @ SET t = '{{a,b}}' WHERE t = '[0:1]={a,b}'",
    "--",
    "DELETE FROM @ WHERE t = '{a,b}'",
    "INSERT INTO @ VALUES ('{a,b}', 1), ('[0:1]={a,b}', 1)",
    "DELETE FROM @ WHERE t = '{{a,b}}'",
)

# Postgres takes -0 and 0 for the same key, and NaN for NaN, and prints what was written.
_ZERO_KEY = (
    "INSERT INTO @ VALUES ('-0', 1), ('NaN', 2), ('1', 3), ('Infinity', 4)",
    "--",
    "UPDATE @ SET t = '0' WHERE t = 0",
    "UPDATE @ SET s = 5 WHERE t = 'NaN'",
    "UPDATE @ SET t = '-0', s = 6 WHERE t = 0",
    "UPDATE @ SET t = '0' WHERE t = 0",
    "DELETE FROM @ WHERE t = 1",
    "--",
    "UPDATE @ SET t = '-0' WHERE t = 0",
    "UPDATE @ SET t = 'NaN', s = 7 WHERE t = 'Infinity' AND false",
    "DELETE FROM @ WHERE t = 'NaN'",
    "INSERT INTO @ VALUES ('NaN', 8)",
)
# Of a numeric that becomes a double (the setting types.numeric): the same one for all of them.
_NEAR = "1234567890123456789"
_NEAR_KEY = (
    f"INSERT INTO @ VALUES ({_NEAR}1, 1), ({_NEAR}2, 2), ({_NEAR}3, 3)",
    "--",
    f"DELETE FROM @ WHERE t = {_NEAR}2",
    f"UPDATE @ SET s = 4 WHERE t = {_NEAR}3",
    "--",
    f"UPDATE @ SET t = {_NEAR}2 WHERE t = {_NEAR}1",
)
EXACTLY = (
    "SELECT cast(_EXACT['t'] AS decimal(38,18)) AS t, s, cast(null AS map<string, string>) _EXACT"
    " FROM ({})"
)
_FULL_ZEROS = (
    "ALTER TABLE @ REPLICA IDENTITY FULL",
    "INSERT INTO @ VALUES ('0', '{0}', '-0'), ('-0', '{0}', '-0'), ('0', '{0}', '-0'),"
    " ('NaN', '{NaN,NULL}', 'NaN')",
    "--",
    "DELETE FROM @ WHERE s::text = '-0'",
    "--",
    "UPDATE @ SET s = 'NaN' WHERE ctid = (SELECT min(ctid) FROM @)",
    "INSERT INTO @ VALUES ('-0', '{0}', '0'), ('0', '{-0}', '0'), ('0', '{0}', '0')",
    "DELETE FROM @ WHERE t::text = '{-0}'",
    "UPDATE @ SET s = '-0' WHERE s::text = '0' AND \"row\"::text = '0'",
)

# A domain over an array, in an array: Spark holds arrays in arrays.
_FULL_NESTED_ZEROS = (
    "ALTER TABLE @ REPLICA IDENTITY FULL",
    """INSERT INTO @ VALUES ('{"{0}"}', 1), ('{"{-0}"}', 1), ('{"{1,-0}","{0}"}', 2),"""
    """ ('{"{1,0}","{-0}"}', 2), (NULL, 3)""",
    "--",
    """DELETE FROM @ WHERE t::text = '{"{0}"}'""",
    "--",
    """DELETE FROM @ WHERE t::text = '{"{1,0}","{-0}"}'""",
    """UPDATE @ SET t = '{"{0}"}' WHERE t::text = '{"{-0}"}'""",
)

VALUES = (
    tell(_ARRAY_KEY, "arrays", columns="t text[] PRIMARY KEY, s int"),
    tell(_FULL_ARRAYS, "arrays_keyless", columns="t text[], s int"),
    tell(_ZERO_KEY, "zero8", columns="t float8 PRIMARY KEY, s int"),
    tell(_FULL_ZEROS, "zero_keyless", columns='s float8, t float8[], "row" float4'),
    tell(_FULL_NESTED_ZEROS, "zero_nested", columns="t vector[], s int"),
    tell(_NEAR_KEY, "near", rows=EXACTLY, columns="t numeric PRIMARY KEY, s int"),
)
VALUES_IN_MODES = (
    tell(
        _ARRAY_KEY,
        "arrays_of_a_domain",
        columns="t letters, s int, PRIMARY KEY (t)",
    ),
    tell(
        _ARRAY_KEY, "arrays_soft", "soft_delete", NOT_DELETED, columns="t text[] PRIMARY KEY, s int"
    ),
    tell(_ARRAY_KEY, "arrays_scd2", "scd2", CURRENT, columns="t text[] PRIMARY KEY, s int"),
    tell(
        _ARRAY_KEY,
        "arrays_history",
        "history",
        newest_of("t, _EXACT['t']"),
        columns="t text[] PRIMARY KEY, s int",
    ),
    tell(
        _FULL_ARRAYS,
        "arrays_keyless_soft",
        "soft_delete",
        NOT_DELETED,
        columns="t text[], s int",
    ),
    tell(_ZERO_KEY, "zero4", columns="t float4 PRIMARY KEY, s int"),
    tell(_ZERO_KEY, "zero_alone", columns="t float8, s int, PRIMARY KEY (t, s)"),
    tell(_ZERO_KEY, "zero_soft", "soft_delete", NOT_DELETED, columns="t float8 PRIMARY KEY, s int"),
    tell(_ZERO_KEY, "zero_scd2", "scd2", CURRENT, columns="t float8 PRIMARY KEY, s int"),
    tell(
        _ZERO_KEY, "zero_history", "history", newest_of("t"), columns="t float8 PRIMARY KEY, s int"
    ),
    tell(
        tuple(
            part.replace("'-0'", "'{-0}'")
            .replace("'0'", "'{0}'")
            .replace("'NaN'", "'{NaN}'")
            .replace("'1'", "'{1}'")
            .replace("'Infinity'", "'{Infinity,-0}'")
            .replace("t = 0", "t = '{0}'")
            .replace("t = 1", "t = '{1}'")
            for part in _ZERO_KEY
        ),
        "zero_array",
        columns="t float8[] PRIMARY KEY, s int",
    ),
    tell(
        _FULL_ZEROS,
        "zero_keyless_soft",
        "soft_delete",
        NOT_DELETED,
        columns='s float8, t float8[], "row" float4',
    ),
)


def test_values_that_are_equal_and_not_the_same(
    spark: SparkSession, database: Database, tmp_path: Path, lake_format: str
) -> None:
    database.execute("CREATE DOMAIN vector AS float8[]")
    follow(VALUES, spark, database, tmp_path, lake_format, types__numeric="double")


@pytest.mark.long
def test_values_that_are_equal_and_not_the_same_in_every_mode(
    spark: SparkSession, database: Database, tmp_path: Path, lake_format: str
) -> None:
    database.execute("CREATE DOMAIN letters AS text[]")
    follow(VALUES_IN_MODES, spark, database, tmp_path, lake_format)


def names_of_ours() -> list[str]:
    """What our own queries call columns, tables and variables, as far as a source may have it."""
    folder = Path(walflow.__file__).parent
    found = {"t", "s", "c", "k", "n", "x", "key", "value", "element", "file", "path"}
    for part in ("spark", "destinations/lake", "destinations/iceberg", "destinations/delta"):
        for file in (folder / part).rglob("*.py"):
            text = file.read_text()
            for pattern in (
                r'alias\(\s*f?"(\w+)',
                r'withColumn(?:Renamed)?\(\s*"(\w+)"',
                r'\bcol\(f?"(\w+)(?:\.(\w+))?',
                r"lambda (\w+)(?:, (\w+))?:",
                r"\bAS (\w+)",
                r'^_[A-Z]+(?:, _[A-Z]+)* = "(\w+)"(?:, "(\w+)")?',
            ):
                for match in re.findall(pattern, text, re.MULTILINE):
                    found.update((match,) if isinstance(match, str) else match)
    # Names of columns that are added to tables are refused where they are added.
    added = {name for name in found if name.startswith("_") and name.isupper()}
    return sorted(
        name for name in found - added if re.fullmatch(r"[a-z_]\w*", name) and not is_reserved(name)
    )


_TYPES = {
    "int": "{}",
    "text": "'text {}'",
    "int[]": "'{{{}, NULL}}'",
    "numeric": "'{}e25'",
    "jsonb": "'{{\"a\": {}}}'",
    "float8": "'{}'",
}
"""With a value, of which ``{}`` is a number."""


def named_story(
    table: str, names: list[str], key: tuple[str, ...], plan: str | None, rows: str = ALL_ROWS
) -> Story:
    types = dict.fromkeys(key or ("t",), "int")
    for place, name in enumerate([name for name in names if name not in types]):
        types[name] = list(_TYPES)[place % len(_TYPES)]
    own = {name: quote_identifier(name) for name in types}
    toasted = [name for name, kind in types.items() if kind == "text"][::2]
    columns = ", ".join(f"{own[name]} {kind}" for name, kind in types.items())

    def row(number: int) -> str:
        values = [_TYPES[kind].format(number) for kind in types.values()]
        for name in toasted:
            values[list(types).index(name)] = f"repeat(md5('{number}'), 100)"
        return f"({', '.join(values)})"

    external = ", ".join(f"ALTER {own[name]} SET STORAGE EXTERNAL" for name in toasted)
    first, second = own[key[0] if key else "t"], own[next(n for n in types if types[n] == "int[]")]
    return Story(
        table,
        columns + (f", PRIMARY KEY ({', '.join(own[name] for name in key)})" if key else ""),
        (
            f"ALTER TABLE {table} {external}",
            *(() if key else (f"ALTER TABLE {table} REPLICA IDENTITY FULL",)),
            f"INSERT INTO {table} VALUES {', '.join(map(row, range(1, 7)))}",
        ),
        (
            f"UPDATE {table} SET {second} = '{{1}}' WHERE {first} = 1",
            f"UPDATE {table} SET {first} = 20 WHERE {first} = 2",
            f"DELETE FROM {table} WHERE {first} = 3",
            f"INSERT INTO {table} VALUES {row(7)}",
            f"UPDATE {table} SET {second} = NULL WHERE {first} = 7",
        ),
        (
            f"UPDATE {table} SET {second} = '{{5}}' WHERE {first} > 4",
            f"DELETE FROM {table} WHERE {first} = 20",
        ),
        {} if plan is None else {"mode": plan},
        rows,
    )


@pytest.mark.long
def test_columns_with_names_of_ours(
    spark: SparkSession, database: Database, tmp_path: Path, lake_format: str
) -> None:
    names = names_of_ours()
    assert {"t", "s", "row", "exact", "identity", "place"} <= set(names)
    follow(
        (
            named_story("named", names, ("t", "s"), None),
            named_story("named_keyless", names, (), None),
            named_story("named_soft", names, ("s", "t"), "soft_delete", NOT_DELETED),
            named_story("named_soft_keyless", names, (), "soft_delete", NOT_DELETED),
            named_story("named_history", names, ("t",), "history", newest_of("t")),
            named_story("named_scd2", names, ("key", "t"), "scd2", CURRENT),
        ),
        spark,
        database,
        tmp_path,
        lake_format,
    )


BARE = "INSERT INTO @ SELECT FROM generate_series(1, 5)"
_BARE_STATEMENTS = (
    "ALTER TABLE @ REPLICA IDENTITY FULL",
    BARE,
    "--",
    BARE,
    "DELETE FROM @ WHERE ctid IN (SELECT ctid FROM @ LIMIT 2)",
    "--",
    "INSERT INTO @ DEFAULT VALUES",
    "DELETE FROM @ WHERE ctid IN (SELECT ctid FROM @ LIMIT 4)",
)
WITHOUT_COLUMNS = (
    tell(_BARE_STATEMENTS, "nothing", columns=""),
    tell((_BARE_STATEMENTS[0], *_BARE_STATEMENTS[2:]), "nothing_at_first", columns=""),
    tell(("--", BARE, "--", "TRUNCATE @", "INSERT INTO @ DEFAULT VALUES"), "emptied", columns=""),
    tell(_BARE_STATEMENTS, "nothing_soft", "soft_delete", NOT_DELETED, columns=""),
    tell((BARE, "--", BARE, "--", BARE), "nothing_history", "history", columns=""),
    tell(
        (
            "ALTER TABLE @ REPLICA IDENTITY FULL",
            "INSERT INTO @ VALUES (1), (2), (3)",
            "--",
            "DELETE FROM @ WHERE t = 1",
            "ALTER TABLE @ DROP COLUMN t",
            "INSERT INTO @ DEFAULT VALUES",
            "--",
            "DELETE FROM @ WHERE ctid = (SELECT min(ctid) FROM @)",
            "INSERT INTO @ SELECT FROM generate_series(1, 3)",
        ),
        "nothing_left",
        columns="t int",
    ),
    # Its columns come and go.
    tell(
        (
            "ALTER TABLE @ REPLICA IDENTITY FULL",
            BARE,
            "--",
            "INSERT INTO @ DEFAULT VALUES",
            "ALTER TABLE @ ADD COLUMN t int DEFAULT 7",
            "INSERT INTO @ VALUES (8), (NULL)",
            "--",
            "DELETE FROM @ WHERE t = 8",
            "UPDATE @ SET t = 9 WHERE t IS NULL",
            "ALTER TABLE @ DROP COLUMN t",
            "INSERT INTO @ DEFAULT VALUES",
        ),
        "something_later",
        columns="",
    ),
)


@pytest.mark.parametrize(
    "metadata",
    [pytest.param(True, id="metadata", marks=pytest.mark.long), pytest.param(False, id="alone")],
)
def test_tables_without_columns(
    spark: SparkSession, database: Database, tmp_path: Path, lake_format: str, metadata: bool
) -> None:
    more = {"apply__metadata": metadata}
    follow(WITHOUT_COLUMNS, spark, database, tmp_path, lake_format, **more)


def follow(
    stories: tuple[Story, ...],
    spark: SparkSession,
    database: Database,
    folder: Path,
    lake_format: str,
    **more: object,
) -> None:
    settings = settings_for(
        database,
        folder,
        "log",
        **more,
        destination__uri=f"{lake_format}://{folder}/lake",
        apply__tables=json.dumps({f"public.{s.table}": s.plan for s in stories if s.plan}),
        # What fails is not tried again: nothing may fail.
        table_error_retry_max_attempts=0,
    )
    for story in stories:
        database.execute(f"CREATE TABLE {story.table} ({story.columns})", *story.copied)
    listed = ", ".join(story.table for story in stories)
    database.execute(f"CREATE PUBLICATION walflow FOR TABLE {listed}")
    lake = Lake(spark, settings)
    sought = [Sought(story.table, story.rows) for story in stories]

    def come_equal(pipeline: Pipeline) -> None:
        check(pipeline, stories)
        # Not quite at once: a table's form may be looked at once more.
        wait_for(lambda: is_equal(database, lake, sought), WAIT, "all are equal", pipeline.check)

    with running(settings, spark) as pipeline:
        come_equal(pipeline)
    for story in stories:
        database.execute(*story.backlog)
    with running(settings, spark) as pipeline:
        come_equal(pipeline)
        for story in stories:
            database.execute(*story.live)
        catch_up(pipeline)
        come_equal(pipeline)


def is_equal(database: Database, lake: Lake, sought: list[Sought]) -> bool:
    try:
        return not differences(database, lake, sought)
    except PySparkException:
        # A table got another form since the query was looked at.
        return False


def check(pipeline: Pipeline, stories: tuple[Story, ...]) -> None:
    """All of them are followed."""

    def phases() -> dict[str, Phase | None]:
        return {story.table: phase_of(pipeline, story.table) for story in stories}

    settled = {Phase.READY, Phase.ERRORED}
    wait_for(lambda: set(phases().values()) <= settled, WAIT, "all are ready", pipeline.check)
    states = [state_of(pipeline, story.table) for story in stories]
    assert not [state for state in states if state is None or state.error is not None]
