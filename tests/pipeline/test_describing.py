"""When the log gets another version of a table's form, and when it does not."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Database
from tests.pipeline.capturing import Capture, changes


def test_versions_tell_columns_and_files_apart(database: Database, tmp_path: Path) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, x text, y int)", "CREATE PUBLICATION p FOR ALL TABLES"
    )
    with Capture(database.uri, tmp_path / "log", slot=f"{database.name}_slot") as capture:

        def written(*statements: str) -> None:
            database.execute(*statements, "INSERT INTO t (id) SELECT count(*) FROM t")
            capture.catch_up()

        written()
        written("CREATE INDEX ON t (x)")
        written("ALTER TABLE t ALTER x SET STATISTICS 10")
        written("VACUUM FULL t")
        written("ALTER TABLE t RENAME x TO z")
        written("ALTER TABLE t RENAME z TO x")
        written("ALTER TABLE t DROP y, ADD y int")
        (found,) = changes(capture.log).values()
        latest = capture.log.latest_schema(found[0][0].oid)
    schemas = [schema for schema, _ in found]
    versions = [schema.version for schema in schemas]
    assert versions == sorted(versions)
    first, index, statistics, vacuumed, renamed, back, anew = schemas
    assert first == index == statistics
    assert vacuumed.same_columns(first)
    assert vacuumed.filenodes.isdisjoint(first.filenodes)
    assert [c.name for c in renamed.columns] == ["id", "z", "y"]
    assert [c.attnum for c in renamed.columns] == [1, 2, 3]
    assert back.same_columns(first)
    assert back.version > renamed.version
    # The message is the same as the one before, and y may be the former one or the new.
    assert anew.same_schema(back)
    assert [c.attnum for c in anew.columns] == [0, 0, 0]
    assert latest == anew
