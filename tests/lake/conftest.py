"""Each test goes into both formats of a lake."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lake.equality import FORMATS
from tests.pipeline import running
from walflow.failpoints import set_failpoints
from walflow.pipeline import joining


@pytest.fixture(params=FORMATS)
def lake_format(request: pytest.FixtureRequest) -> str:
    """``iceberg`` and ``delta``, as URIs name them."""
    name: str = request.param
    return name


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A form that changes is seen soon, all tables are waited for, however many they are, and no
    failpoint outlives its test."""
    monkeypatch.setattr(joining, "_LOOK_SECONDS", 0.5)
    monkeypatch.setattr(running, "WAIT", 400)
    yield
    set_failpoints("")
