"""What cannot be done in columns, and why."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["FallBackToSpark", "Reason"]


class Reason(StrEnum):
    """A few words each: they are labels of a metric."""

    SETTING = "apply.engine is spark"
    FORMAT = "no columnar engine for this format"
    MODE = "mode"
    SIZE = "size"
    PLACE = "files elsewhere"
    TABLE = "how the table is made"
    TYPES = "types"
    MISSING = "missing rows"
    ERROR = "error"


class FallBackToSpark(Exception):
    """This cannot be done in columns; nothing has happened, and Spark can do it."""

    def __init__(self, detail: str, reason: Reason = Reason.TABLE) -> None:
        super().__init__(detail)
        self.reason = reason
