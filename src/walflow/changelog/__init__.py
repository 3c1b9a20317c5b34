"""The change log: durable segments of changes between receiving and applying."""

from walflow.changelog.checksums import checksum_of, damage_of
from walflow.changelog.copies import (
    CompleteCopy,
    CopyFile,
    CopyPlan,
    FinishedRange,
    PlannedRange,
    TableCopy,
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
    "CompleteCopy",
    "CopyFile",
    "CopyPlan",
    "FinishedRange",
    "LogFile",
    "LogIdentity",
    "PlannedRange",
    "Segment",
    "SegmentWriter",
    "TableCopy",
    "checksum_of",
    "damage_of",
    "store_range",
]
