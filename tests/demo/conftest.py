from __future__ import annotations

from tests.cli.conftest import room

__all__ = ["room"]
