"""``walflow as-of`` as a user meets it."""

from __future__ import annotations

import functools
import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.cli.commands import Room
from tests.cli.stored import opened, put_table
from tests.conftest import Database
from tests.destinations.reference import reading_session
from tests.docs.blocks import ROOT
from walflow import destinations
from walflow.cli import _exit_code
from walflow.errors import ConsistentCutGone, NoConsistentCut, UnknownTable
from walflow.model import Lsn, Phase

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pipeline(room: Room, source: str) -> list[str]:
    return [
        *("--from", source, "--to", f"iceberg://{room.path / 'lake'}"),
        *("--name", "shop", "--log", str(room.path / "log")),
        *("--set", "spark.driver_memory=1g"),
    ]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["16B374D848"], "'16B374D848' is not a log position: one looks like 16/B374D848, or is"),
        (["0/1", "0/2"], "Give one LSN, not 0/1 and 0/2."),
        (["a.yaml", "b.yml"], "Give one FILE, with --file or without."),
        (["0/1", "--at", "2026-11-15"], "Give LSN or --at, not both."),
        (["--at", "yesterday"], "'yesterday' is not a time: one looks like 2026-11-15T12:00:00Z."),
    ],
)
def test_what_cannot_be_understood(room: Room, arguments: list[str], told: str) -> None:
    ran = room.run("as-of", *arguments, *pipeline(room, "postgresql:///none"))
    assert ran.returncode == 2
    assert told in ran.stderr


def test_a_table_that_the_pipeline_has_not(room: Room) -> None:
    with opened(room.path / "log") as store:
        put_table(store, 1, "public.orders", Phase.READY)
    ran = room.run("as-of", "--table", "public.order", *pipeline(room, "postgresql:///none"))
    assert ran.returncode == UnknownTable.exit_code
    assert "Did you mean public.orders?" in ran.stderr


@pytest.mark.spark
def test_the_sql_reads_all_tables_as_of_one_commit(
    database: Database,
    room: Room,
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, amount int)",
        "CREATE TABLE lines (id bigint PRIMARY KEY, amount int)",
        "INSERT INTO orders VALUES (1, 10)",
        "INSERT INTO lines VALUES (1, 4), (2, 6)",
        "CREATE PUBLICATION walflow FOR ALL TABLES",
    )
    options = pipeline(room, database.uri)
    ran = room.run("run", "--until-caught-up", *options, "--slot", f"{database.name}_slot")
    assert ran.returncode == 0, ran.stderr
    # By its name and its log, as it was noted at its start; without source, and without Spark.
    found_by = ("--name", "shop", "--log", str(room.path / "log"))
    newest = room.run("as-of", "--json", *found_by)
    assert (newest.returncode, newest.stderr) == (0, "")
    shown = json.loads(newest.stdout)
    assert [table["table"] for table in shown["tables"]] == ["public.lines", "public.orders"]
    assert (shown["exact"], shown["missing"], shown["asked"]) == (True, [], None)
    assert Lsn.parse(shown["lsn"]) == shown["lsn_number"] >= shown["since_number"]
    reader = reading_session(spark, room.path / "lake")
    amounts = [
        reader.sql(f"SELECT sum(amount) FROM ({table['query']})").collect()[0][0]
        for table in shown["tables"]
    ]
    assert amounts == [10, 10]

    by_file = room.path / "shop.yaml"
    by_file.write_text(f"name: shop\nlog: {{folder: {room.path / 'log'}}}\n")
    same = room.run(
        *("as-of", by_file, str(shown["lsn_number"]), "--to", f"iceberg://{room.path / 'lake'}")
    )
    assert (same.returncode, same.stderr) == (0, "")
    assert f"as of {shown['lsn']} (_LSN {shown['lsn_number']}, " in same.stdout

    # The rest in this process, whose Spark has started already.
    open_destination = functools.partial(destinations.open_destination, spark=spark)
    monkeypatch.setattr(destinations, "open_destination", open_destination)

    def ask(*arguments: str) -> tuple[int, str, str]:
        code = _exit_code(["as-of", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    code, out, err = ask("FFFF/0", "--table", "orders", *options)
    assert code == 0, err
    assert err == ""
    head, note, query = out.splitlines()
    assert head.startswith(f"-- All tables as of {shown['lsn']} (")
    assert note == "-- There is no cut at FFFF/0 itself: this is the newest one before it."
    assert query == f"{shown['tables'][1]['query']};"

    code, out, err = ask("--at", "2999-01-01", "--json", *options)
    assert code == 0, err
    assert json.loads(out) == {**shown, "exact": None, "asked": "2999-01-01"}

    # What is noted is what is in the lake.
    assert err == ""
    (room.path / "log" / "cuts.db").unlink()
    code, out, err = ask("--json", *found_by)
    assert "Starting Spark to look into the destination" in err
    assert json.loads(out) == shown

    # Maybe of one table only: of the one that was ready first.
    ((oldest,),) = reader.sql(
        "SELECT min_by(since_lsn, lsn) FROM lake._walflow.consistent_cuts_shop"
    ).collect()
    code, out, err = ask("0/1", *options)
    assert code == ConsistentCutGone.exit_code
    assert f"the oldest one is of {Lsn(oldest)}" in err
    assert f"Ask for {Lsn(oldest)} or later." in err

    elsewhere = ("--to", f"iceberg://{room.path / 'empty'}", "--log", str(room.path / "no-log"))
    code, out, err = ask(*options, *elsewhere)
    assert code == NoConsistentCut.exit_code
    assert "There is no consistent cut of the pipeline shop" in err


@pytest.mark.spark
def test_positions_as_text_and_as_numbers(database: Database, spark: SparkSession) -> None:
    """As the docs say it for Postgres and for Spark."""
    page = (ROOT / "docs" / "how-to" / "read-as-of-one-commit.md").read_text(encoding="utf-8")
    part = page.partition("## Positions as text and as numbers")[2].partition("\n## ")[0]
    in_postgres, in_spark = re.findall(r"```sql\n(.*?)```", part, re.DOTALL)
    for text in ("0/26F1840", "0/0", "1/0", "16/B374D848", "FFFF/FFFFFFFF"):
        number = int(Lsn.parse(text))
        written = in_postgres.replace("0/26F1840", text).replace("40835136", str(number))
        assert database.execute(written) == [(text, number)]
        one = f"(SELECT CAST({number} AS BIGINT) AS _LSN)"
        written = in_spark.replace("0/26F1840", text).replace("lake.public.orders", one)
        assert [tuple(row) for row in spark.sql(written.rstrip("\n;")).collect()] == [
            (text, number)
        ]
