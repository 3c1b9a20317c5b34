"""Whole pipelines from a source to a lake: every case there is, each with a table of its own, in
groups that go through a pipeline together."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from tests.conftest import Database
from tests.lake.both_engines import BothEngines, assert_engines_agree
from tests.lake.cases import BETWEEN, GROUPS, TOLD, Case, Statements
from tests.lake.equality import Lake, Sought, assert_equal, differences
from tests.pipeline.capturing import wait_for
from tests.pipeline.running import WAIT, catch_up, phase_of, running, settings_for, state_of
from walflow.config import Settings
from walflow.destinations.base import Destination
from walflow.failpoints import set_failpoints
from walflow.model import Phase, TableName
from walflow.pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

# What happens to a table with a key is noted as its history has it: a change of key is two changes.
TELL = """
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE keyless bool := TG_TABLE_NAME LIKE '%keyless';
BEGIN
  IF TG_OP = 'TRUNCATE' THEN
    INSERT INTO told (t, kind) VALUES (TG_TABLE_NAME, 'truncate');
  END IF;
  IF TG_OP = 'DELETE' OR TG_OP = 'UPDATE' AND (keyless OR OLD.id <> NEW.id) THEN
    INSERT INTO told (t, kind, id, v)
    VALUES (TG_TABLE_NAME, 'delete', OLD.id, CASE WHEN keyless THEN OLD.v END);
  END IF;
  IF TG_OP IN ('INSERT', 'UPDATE') THEN
    INSERT INTO told (t, kind, id, v) VALUES (TG_TABLE_NAME, lower(TG_OP), NEW.id, NEW.v);
  END IF;
  RETURN NULL;
END $$"""
MAKE_TOLD = (
    "CREATE TABLE told (number bigserial, transaction xid8 DEFAULT pg_current_xact_id(), t text,"
    " kind text, id int, v text)"
)
VERSIONS = """
SELECT count(*) FROM (
  SELECT DISTINCT ON (transaction, id) * FROM told WHERE t = 'versions' AND kind <> 'truncate'
  ORDER BY transaction, id, number DESC
) last
WHERE kind <> 'delete' AND NOT EXISTS (
  SELECT FROM told WHERE t = 'versions' AND kind = 'truncate'
  AND transaction = last.transaction AND number > last.number
)"""
"""How many versions of rows a reader of the source could have seen."""


@pytest.mark.parametrize(
    ("lake_format", "group"),
    [
        *(("iceberg", group) for group in GROUPS),
        # Delta's own part in these is small, and it takes its time.
        *(pytest.param("delta", group, marks=pytest.mark.long) for group in GROUPS),
    ],
)
def test_every_case(
    spark: SparkSession, database: Database, tmp_path: Path, lake_format: str, group: str
) -> None:
    cases = GROUPS[group]
    settings = settings_for(
        database,
        tmp_path,
        destination__uri=f"{lake_format}://{tmp_path}/lake",
        apply__tables=json.dumps({f"public.{c.table}": c.plan for c in cases if c.plan}),
        # What fails is not tried again: nothing may fail.
        table_error_retry_max_attempts=0,
    )
    for case in cases:
        execute(database, (f"CREATE TABLE {case.table} ({case.columns})", *case.copied))
    listed = ", ".join(case.table for case in cases)
    database.execute(f"CREATE PUBLICATION walflow FOR TABLE {listed}")
    lake = Lake(spark, settings)

    between = next((case.table for case in cases if case.table == BETWEEN), None)
    told = [case.table for case in cases if case.table in TOLD]
    # Each case is written by both engines, and they end equal.
    both = partial(BothEngines, spark, settings) if lake_format == "iceberg" else lambda: None
    copy_all(settings, spark, cases, both())
    begin_to_tell(database, told)

    for case in cases:
        execute(database, case.backlog)
    with running(settings, spark, caught_up=False, destination=both()) as pipeline:
        if between is not None:
            pipeline.retry(TableName("public", between))
        wait_ready(pipeline, (case.table for case in cases))
        catch_up(pipeline)
        assert_equal(database, lake, map(sought, cases))
        if told:
            check_told(database, lake)
        copied = {case.table: times_of(pipeline, case.table) for case in cases}

        for case in cases:
            execute(database, case.live)
        catch_up(pipeline)
        wait_ready(pipeline, (case.becomes or case.table for case in cases))
        wait_equal(pipeline, database, lake, cases)
        if told:
            check_told(database, lake)
        if lake_format == "iceberg":
            tables = (case.becomes or case.table for case in cases if not case.plan)
            assert_engines_agree(lake, settings, tables)
        for case in cases:
            if not case.copied_again and case.becomes is None:
                assert times_of(pipeline, case.table) == copied[case.table], case.table


def copy_all(
    settings: Settings,
    spark: SparkSession,
    cases: Iterable[Case],
    destination: Destination | None,
) -> None:
    """Copy the tables; the copy of one is read, and handed over only by the next run."""
    set_failpoints(f"sync.finished_copy[public.{BETWEEN}]=raise")
    with running(settings, spark, caught_up=False, destination=destination) as pipeline:
        for case in cases:
            if case.table == BETWEEN:
                wait_for(lambda: phase_of(pipeline, BETWEEN) is Phase.ERRORED, WAIT, BETWEEN)
            else:
                wait_ready(pipeline, [case.table])
    set_failpoints("")


def begin_to_tell(database: Database, tables: Iterable[str]) -> None:
    database.execute(MAKE_TOLD, TELL)
    for table in tables:
        database.execute(
            f"INSERT INTO told (t, kind, id, v) SELECT '{table}', 'copy', id, v FROM {table}",
            f"CREATE TRIGGER told AFTER INSERT OR UPDATE OR DELETE ON {table}"
            " FOR EACH ROW EXECUTE FUNCTION tell()",
            f"CREATE TRIGGER told_empty AFTER TRUNCATE ON {table} EXECUTE FUNCTION tell()",
        )


def check_told(database: Database, lake: Lake) -> None:
    """What the tables of each mode have beside the source's rows."""
    told: dict[str, list[tuple[Any, ...]]] = {
        table: database.execute(f"SELECT kind, id, v FROM told WHERE t = '{table}'")
        for table in TOLD
    }
    history = lake.rows(f"SELECT _CHANGE_TYPE, id, v FROM ({lake.query('history')})")
    assert Counter(history) == Counter(told["history"])
    order = f"SELECT count(DISTINCT _LSN, _SEQ) FROM ({lake.query('history')}) WHERE _SEQ >= 0"
    changes = sum(kind != "copy" for kind, _, _ in told["history"])
    assert lake.rows(order) == [(changes,)]

    came = [row for row in told["soft"] if row[0] in ("copy", "insert", "update")]
    soft = lake.rows(f"SELECT id FROM ({lake.query('soft')})")
    assert Counter(soft) == Counter({(key,) for _, key, _ in came})
    copies = [row[1:] for row in told["soft_keyless"] if row[0] in ("copy", "insert", "update")]
    query = f"SELECT id, v FROM ({lake.query('soft_keyless')})"
    assert Counter(lake.rows(query)) == Counter(copies)

    versions = lake.query("versions")
    assert lake.rows(f"SELECT count(*) FROM ({versions})") == database.execute(VERSIONS)
    overlapping = lake.rows(
        "SELECT id, _LSN, _VALID_FROM, _VALID_TO, _CURRENT, next FROM (SELECT *, lead(_VALID_FROM)"
        f" OVER (PARTITION BY id ORDER BY _LSN) AS next FROM ({versions}))"
        " WHERE _CURRENT <> (_VALID_TO IS NULL) OR _VALID_TO > next OR _VALID_TO < _VALID_FROM"
        " OR (_CURRENT AND next IS NOT NULL)"
    )
    assert overlapping == []


def wait_equal(pipeline: Pipeline, database: Database, lake: Lake, cases: Sequence[Case]) -> None:
    """What was done to a form alone is seen a little later."""
    deadline = time.monotonic() + WAIT
    while found := differences_now(database, lake, cases):
        pipeline.check()
        assert time.monotonic() < deadline, found
        time.sleep(0.5)


def differences_now(database: Database, lake: Lake, cases: Iterable[Case]) -> dict[str, str]:
    try:
        return differences(database, lake, map(sought_at_last, cases))
    except PySparkException as error:
        # So Spark says that a table has got another form since it has looked at the query.
        return {"some table": str(error)}


def sought(case: Case) -> Sought:
    return Sought(case.table, case.rows)


def sought_at_last(case: Case) -> Sought:
    return Sought(case.becomes or case.table, case.rows, case.keeps)


def execute(database: Database, statements: Statements) -> None:
    with database.connect() as connection:
        for statement in statements:
            with connection.transaction():
                for part in (statement,) if isinstance(statement, str) else statement:
                    connection.execute(part.encode())


def wait_ready(pipeline: Pipeline, tables: Iterable[str]) -> None:
    for table in tables:
        wait_for(
            lambda table=table: phase_of(pipeline, table) is Phase.READY,  # type: ignore[misc]
            WAIT,
            f"{table} is ready: {state_of(pipeline, table)}",
            pipeline.check,
        )


def times_of(pipeline: Pipeline, table: str) -> tuple[int, float]:
    """Others when the table has been copied again."""
    state = state_of(pipeline, table)
    assert state is not None
    return state.rows_copied, state.since
