"""The contract of stores, as somebody uses it who has a store of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
        timeout=120,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "assert {} == {16384: " in ran.stdout
