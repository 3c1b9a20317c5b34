"""The contracts, as somebody uses them who has a store or a destination of their own."""

from __future__ import annotations

import datetime
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from walflow.testing.destinations import assert_equal
from walflow.testing.sources import Inexact, Source, make_schema

BROKEN = """
import pytest
from walflow.stores.memory import MemoryStore
from walflow.testing.stores import OpenStore, StoreContract


class Broken(MemoryStore):
    def get_table_mappings(self):
        return {}


class TestBroken(StoreContract):
    persistent = cached = False

    @pytest.fixture
    def open_store(self) -> OpenStore:
        return Broken
"""


def test_what_fails_shows_its_values(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text(BROKEN)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "mapping"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "assert {} == {16384: " in ran.stdout


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (True, 1),
        (1, 1.0),
        (1.0, 1),
        (Decimal("1.5"), 1.5),
        (Decimal("1.5"), "1.5"),
        (datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), "2026-01-01T00:00:00+00:00"),
        (b"a", "a"),
        ([1], [True]),
    ],
)
def test_values_of_other_types_are_others(value: Any, other: Any, tmp_path: Path) -> None:
    source = Source(make_schema({"a": "string"}, []), tmp_path)
    source.insert(a=value)
    assert_equal([{"a": value}], source)
    with pytest.raises(AssertionError, match="too many: "):
        assert_equal([{"a": other}], source)


def test_exact_texts_count_where_they_are_kept(tmp_path: Path) -> None:
    source = Source(make_schema({"a": "decimal(9,2)"}, []), tmp_path)
    source.insert(a=Inexact(None, "NaN"))
    for stored in (None, Inexact(None, "Infinity")):
        assert_equal([{"a": stored}], source)
        with pytest.raises(AssertionError, match="too many: "):
            assert_equal([{"a": stored}], source, exact=True)
    assert_equal([{"a": Inexact(None, "NaN")}], source, exact=True)
