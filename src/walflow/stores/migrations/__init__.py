"""The way from an empty database to the tables of this version: one Alembic revision a step.

A revision is not edited once it was released: a new one is added, here and in ``versions``.
"""

from __future__ import annotations

__all__ = ["HEAD", "REVISIONS", "VERSION_TABLE"]

REVISIONS = ("0002",)
"""All that there are, oldest first: known without Alembic, which takes its time to import."""

HEAD = REVISIONS[-1]

VERSION_TABLE = "walflow_version"
