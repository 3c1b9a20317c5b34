from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.commands import Room, new_room


@pytest.fixture
def room() -> Iterator[Room]:
    with new_room() as made:
        yield made
        assert made.processes_after(10) == []
