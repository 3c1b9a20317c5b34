"""What others build on: a name that comes or goes is a decision, not an accident."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import walflow

NAMES = {
    "walflow": "Lsn Pipeline PipelineStatus Settings TableName WalflowError load_settings",
    "walflow.config": (
        "ApplySettings BatchSettings CopySettings DestinationSettings LogSettings "
        "MaintenanceSettings "
        "MappingSettings Settings SourceSettings SparkSettings StoreSettings TableSettings "
        "TablesSettings TlsSettings "
        "TypeSettings host_and_port load_settings redacted"
    ),
    "walflow.destinations.base": (
        "Capabilities ConsistentCut Destination FormerChanges TableChanges TableCopy CutTable "
        "Written"
    ),
    "walflow.destinations.own": (
        "BasicDestination OptionalCalls OwnDestination adapted capabilities_of"
    ),
    "walflow.destinations.arrow": "ArrowDestination",
    "walflow.destinations.http": (
        "SIGNATURE_HEADER HttpDestination HttpOptions is_signed signature"
    ),
    "walflow.destinations.rowwise": (
        "Begin Change Commit CopiedRow Delete Event Insert Relation Row RowwiseDestination "
        "Truncate Update"
    ),
    "walflow.errors": (
        "AuthenticationFailed BadUri CannotConnect CheckFailed ConfigError ConnectionLost "
        "DestinationError DestinationForeign DiskFull ErrorKind FailpointReached IllegalMove "
        "JarsMissing JavaMissing LeaseLost LogDamaged LogError LogForeign LogInUse "
        "MappingConflict NoFreeSender NoFreeSlot "
        "NoConsistentCut NoReplicaIdentity NoReplicationRight "
        "NoSelectRight NotEqual NothingToRollBack ConsistentCutGone PipelineInUse PostgresMissing "
        "ProtocolError PublicationChanged PublicationMissing RequestRefused "
        "ReservedColumnName ServerTooOld "
        "SlotForeign SlotInUse SlotLost SnapshotLost SourceError SparkError Stopped "
        "StoreError StoreForeign TableLocked TableMoved TableRewritten TablesSetAside UnknownTable "
        "WalLevelNotLogical WalflowError"
    ),
    "walflow.evolution": "Evolution NotFollowed evolution key_numbers widens",
    "walflow.model": (
        "OLD_EXACT ChangeStats ChangeType Column CopyFile Lsn PageRange PgType Phase "
        "ReplicaIdentity Span "
        "TableName TableSchema quote_identifier"
    ),
    "walflow.pipeline.pipeline": "Pipeline PipelineStatus",
    "walflow.states": (
        "Gap Membership RetryKind RetryPolicy Storage TableError TableReplicationState stands_at"
    ),
    "walflow.stores.base": (
        "Action BasicStore CleanupStore Holder Lease LeaseStore Report Request RequestStore "
        "SchemaStore StateStore Store"
    ),
    "walflow.stores.cached": "HISTORY_LENGTH CachedStore",
    "walflow.stores.memory": "Memory MemoryStore",
    "walflow.testing.destinations": "DestinationContract ReadRows Reopen",
    "walflow.testing.faults": "FaultyDestination failpoints",
    "walflow.testing.postgres": "EmbeddedPostgres available_versions find_binaries",
    "walflow.testing.redis": "EmbeddedRedis find_redis_server",
    "walflow.testing.sources": "Inexact Row Source assert_same make_schema same way_to",
    "walflow.testing.spark": "spark",
    "walflow.testing.stores": "OpenStore StoreContract",
}


@pytest.mark.parametrize("module", NAMES)
def test_names_are_these(module: str) -> None:
    found = import_module(module)
    assert sorted(found.__all__) == sorted(NAMES[module].split())
    for name in found.__all__:
        assert getattr(found, name) is not None


def test_names_of_the_package_are_there_when_asked_for() -> None:
    assert set(walflow.__all__) <= set(dir(walflow))
    with pytest.raises(AttributeError, match="'walflow' has no attribute 'nonsense'"):
        walflow.nonsense  # noqa: B018
    program = (
        "import sys, walflow; before = set(sys.modules); walflow.Pipeline;"
        "print('pydantic' in before, 'pydantic' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout.split() == ["False", "True"]
