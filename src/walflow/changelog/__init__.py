"""The change log: durable segments of changes between receiving and applying."""

from walflow.changelog.log import ChangeLog
from walflow.changelog.parquet import META_COLUMNS, OPTIONAL_COLUMNS
from walflow.changelog.records import Copy, LogFile, LogIdentity, Segment
from walflow.changelog.writer import SegmentWriter

__all__ = [
    "META_COLUMNS",
    "OPTIONAL_COLUMNS",
    "ChangeLog",
    "Copy",
    "LogFile",
    "LogIdentity",
    "Segment",
    "SegmentWriter",
]
