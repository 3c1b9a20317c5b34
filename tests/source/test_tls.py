"""What the settings say of TLS reaches libpq."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Database
from walflow.config import load_settings
from walflow.errors import CannotConnect
from walflow.source.connection import connect


def uri_with(database: Database, **tls: str | Path) -> str:
    settings = {f"source.tls.{key}": value for key, value in tls.items()}
    ends = {"source.uri": database.uri, "destination.uri": "iceberg:///x"}
    return load_settings(None, ends | settings, {}).source.uri.get_secret_value()


def test_a_server_without_tls(database: Database, tmp_path: Path) -> None:
    for mode in ("disable", "prefer"):
        with connect(uri_with(database, mode=mode), application_name="t") as session:
            assert session.pgconn.ssl_in_use is False
    # Who names a certificate wants it looked at.
    refused: list[dict[str, str | Path]] = [
        {"mode": "require"},
        {"root_certificate": tmp_path / "a.crt"},
    ]
    for tls in refused:
        with pytest.raises(CannotConnect, match="does not support SSL, but SSL was required"):
            connect(uri_with(database, **tls), application_name="t")
