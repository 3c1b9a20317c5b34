"""Before a destination is opened: what is refused, and that nothing is made."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from walflow.destinations import check_folder, warehouse_of
from walflow.destinations.base import TablesFailed
from walflow.errors import DestinationError, DestinationForeign
from walflow.model import TableName

ONE, TWO = TableName("public", "one"), TableName("public", "two")


def test_a_folder_that_can_be_made_is_not_made(tmp_path: Path) -> None:
    check_folder(tmp_path)
    check_folder(tmp_path / "a" / "lake")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["file", "file/lake", "nowhere", "nowhere/lake"])
def test_what_is_no_folder_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    with pytest.raises(DestinationError, match="is not a folder"):
        check_folder(tmp_path / place)


def test_a_folder_with_signs_of_uris_in_its_name() -> None:
    assert warehouse_of("iceberg:///data/50%25%20%231/lake") == Path("/data/50% #1/lake")


def test_tables_failed_can_be_tried_again() -> None:
    failed = TablesFailed({ONE: DestinationError("busy"), TWO: RuntimeError("Spark")})
    assert (failed.retry, failed.exit_code) == (True, 50)
    assert failed.message == "public.one: busy (and 1 more)"


def test_one_table_that_cannot_be_tried_again_speaks_for_all() -> None:
    foreign = DestinationForeign("not ours", hint="move it")
    failed = TablesFailed({ONE: RuntimeError("Spark"), TWO: foreign})
    back = pickle.loads(pickle.dumps(failed))
    for error in (failed, back):
        assert (error.retry, error.exit_code, error.hint) == (False, 51, "move it")
        assert error.message == "public.two: not ours (and 1 more)"
        assert list(error.failures) == [ONE, TWO]
    assert TablesFailed.retry  # of other errors nothing has changed
