"""Each test goes into both formats of a lake."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from walflow.failpoints import set_failpoints


@pytest.fixture(params=["iceberg", pytest.param("delta", marks=pytest.mark.long)])
def lake_format(request: pytest.FixtureRequest) -> str:
    """``iceberg`` and ``delta``, as URIs name them. Delta's own part in a story is small, and takes
    three times as long: test_set_back.py and tests/destinations have quick ones."""
    name: str = request.param
    return name


@pytest.fixture(autouse=True)
def no_failpoints_left() -> Iterator[None]:
    """No failpoint outlives its test."""
    yield
    set_failpoints("")
