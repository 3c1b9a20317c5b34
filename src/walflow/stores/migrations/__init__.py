"""Alembic revisions, from an empty database to the tables of this version.

Do not edit a revision that was released: add a new one, here and in ``versions``.
"""

from __future__ import annotations

__all__ = ["HEAD", "REVISIONS", "VERSION_TABLE"]

REVISIONS = ("0002",)
"""All revisions, oldest first. Listed here, so that Alembic need not be imported, which takes its
time."""

HEAD = REVISIONS[-1]

VERSION_TABLE = "walflow_version"
