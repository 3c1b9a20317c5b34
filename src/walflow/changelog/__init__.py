"""The change log: durable segments of changes between receiving and applying."""

from walflow.changelog.copies import (
    CopyFolder,
    CopyPlan,
    FinishedCopy,
    FinishedRange,
    store_range,
)
from walflow.changelog.log import ChangeLog
from walflow.changelog.parquet import META_COLUMNS, OPTIONAL_COLUMNS
from walflow.changelog.records import LogFile, LogIdentity, Segment
from walflow.changelog.writer import SegmentWriter

__all__ = [
    "META_COLUMNS",
    "OPTIONAL_COLUMNS",
    "ChangeLog",
    "CopyFolder",
    "CopyPlan",
    "FinishedCopy",
    "FinishedRange",
    "LogFile",
    "LogIdentity",
    "Segment",
    "SegmentWriter",
    "store_range",
]
