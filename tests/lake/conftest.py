"""Each test goes into both formats of a lake."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lake.equality import FORMATS
from walflow.failpoints import set_failpoints


@pytest.fixture(params=FORMATS)
def lake_format(request: pytest.FixtureRequest) -> str:
    """``iceberg`` and ``delta``, as URIs name them."""
    name: str = request.param
    return name


@pytest.fixture(autouse=True)
def no_failpoints_left() -> Iterator[None]:
    """No failpoint outlives its test."""
    yield
    set_failpoints("")
