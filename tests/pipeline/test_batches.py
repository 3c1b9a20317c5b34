"""How much a segment of the log collects."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Database
from tests.pipeline.capturing import Capture, wait_for

WAIT = 30
LONG = 3600.0


def test_a_segment_is_sealed_at_the_commit_past_its_size(
    database: Database, tmp_path: Path
) -> None:
    database.execute(
        "CREATE TABLE a (id int)", "CREATE TABLE b (id int)", "CREATE PUBLICATION p FOR ALL TABLES"
    )
    slot = f"{database.name}_batches"
    with Capture(database.uri, tmp_path, slot=slot, max_changes=100, fill_seconds=LONG) as capture:
        log = capture.log

        def changes() -> list[int]:
            return [sum(file.stats.rows for file in s.files) for s in log.segments(log.start)]

        # Nothing but its size ends it: changes of all tables count.
        database.execute("INSERT INTO a SELECT generate_series(1, 60)")
        database.execute("INSERT INTO b SELECT generate_series(1, 60)")
        wait_for(lambda: sum(changes()) == 120, WAIT)
        database.execute("INSERT INTO a SELECT generate_series(1, 500)")
        wait_for(lambda: sum(changes()) == 620, WAIT)
        assert changes()[-1] == 500
