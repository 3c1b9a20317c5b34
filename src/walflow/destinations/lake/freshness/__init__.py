"""Tables whose changes are appended, shown by a view, and merged when it pays."""

from __future__ import annotations

from walflow.destinations.lake.freshness.parts import (
    Parts,
    base_of,
    changes_of,
    version_of_parts,
)
from walflow.destinations.lake.freshness.shown import shown
from walflow.destinations.lake.freshness.viewed import ViewedTables

__all__ = ["Parts", "ViewedTables", "base_of", "changes_of", "shown", "version_of_parts"]
