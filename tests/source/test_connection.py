"""Connecting to the source: what works, and what the operator is told when it does not."""

from __future__ import annotations

import pytest

from tests.conftest import Database
from walflow.errors import (
    AuthenticationFailed,
    BadUri,
    CannotConnect,
    ConnectionLost,
    NoReplicationRight,
    SourceError,
)
from walflow.source.connection import connect, connection_parameters, redact, source_errors
from walflow.testing.postgres import EmbeddedPostgres

SECRET = "s3cret-w0rd"


def attempt(uri: str) -> None:
    connect(uri, application_name="walflow test").close()


def test_a_session_has_our_settings_whatever_the_role_prefers(any_database: Database) -> None:
    uri = any_database.replicator(
        "ALTER ROLE {role} SET datestyle = 'German'",
        "ALTER ROLE {role} SET timezone = 'Asia/Tokyo'",
    )
    with connect(uri, application_name="walflow test") as connection:
        shown = [
            connection.execute(f"SHOW {name}").fetchone()
            for name in ("timezone", "datestyle", "client_encoding", "application_name")
        ]
    assert shown == [("UTC",), ("ISO, MDY",), ("UTF8",), ("walflow test",)]


def test_the_key_value_form_works_and_the_users_own_options_stay(database: Database) -> None:
    server = database.server
    text = (
        f"host=127.0.0.1 port={server.port} user={server.user} password={server.password} "
        f"dbname={database.name} options='-c work_mem=77MB -c timezone=Asia/Tokyo'"
    )
    with connect(text, application_name="walflow test") as connection:
        assert connection.execute("SHOW work_mem").fetchone() == ("77MB",)
        assert connection.execute("SHOW timezone").fetchone() == ("UTC",)


def test_a_replication_connection_needs_the_right(database: Database) -> None:
    with connect(
        database.replicator(), application_name="walflow test", replication="database"
    ) as connection:
        assert connection.pgconn.exec_(b"IDENTIFY_SYSTEM").ntuples == 1
    database.execute(f"CREATE ROLE {database.name}_role_plain LOGIN PASSWORD 'x'")
    plain = database.server.uri_for(database.name, user=f"{database.name}_role_plain", password="x")
    with pytest.raises(NoReplicationRight) as raised:
        connect(plain, application_name="walflow test", replication="database")
    assert f'ALTER ROLE "{database.name}_role_plain" REPLICATION;' in raised.value.hint


def test_wrong_password_user_database_host_and_port(postgres: EmbeddedPostgres) -> None:
    where = f"127.0.0.1:{postgres.port}"
    cases: list[tuple[str, type[SourceError], str]] = [
        (f"postgresql://postgres:{SECRET}@{where}/postgres", AuthenticationFailed, "password"),
        (
            f"postgresql://nobody_here:{SECRET}@{where}/postgres",
            AuthenticationFailed,
            "nobody_here",
        ),
        (f"postgresql://postgres@{where}/postgres?passfile=/nonexistent", AuthenticationFailed, ""),
        (postgres.uri_for("no_such_database"), CannotConnect, "no_such_database"),
        (f"postgresql://u:{SECRET}@127.0.0.1:1/db", CannotConnect, "refused"),
        (f"postgresql://u:{SECRET}@no-such-host.invalid/db", CannotConnect, "no-such-host.invalid"),
        (postgres.uri_for("postgres", sslmode="verify-full"), CannotConnect, ""),
    ]
    for uri, kind, words in cases:
        with pytest.raises(kind) as raised:
            attempt(uri)
        assert type(raised.value) is kind, uri
        assert words in raised.value.message
        assert raised.value.hint
        told = f"{raised.value} {raised.value.hint} {raised.value.__cause__}"
        assert SECRET not in told
        assert postgres.password not in told


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "nonsense",
        f"mysql://u:{SECRET}@h/d",
        f"postgresql//u:{SECRET}@h/d",
        f"postgresql://u:{SECRET}@more@h/d",
        f"postgresql://u:12/{SECRET}@h/d",
        f"postgresql://u:{SECRET}/x@h/d",
        f"postgresql://u:{SECRET}@h:port/d",
        f"postgresql://u:{SECRET}@h/d?no_such_parameter=1",
        f"postgresql://u:{SECRET}%zz@h/d",
        f"postgresql://u:{SECRET}@127.0.0.1:1/d?sslmode=sometimes",
        f"host=h password='{SECRET}",
    ],
)
def test_a_uri_that_cannot_be_understood(uri: str) -> None:
    with pytest.raises(BadUri) as raised:
        attempt(uri)
    told = f"{raised.value} {raised.value.hint} {raised.value.__cause__} {redact(uri)}"
    assert SECRET not in told
    assert "postgresql://" in raised.value.hint


def test_redacted_uris_show_where_and_who_but_no_secret() -> None:
    uri = f"postgresql://me:{SECRET}@a,b:5433/shop?sslmode=require&sslpassword={SECRET}"
    assert redact(uri) == "postgresql://me@a,b:5433/shop"
    assert SECRET not in redact(uri)
    assert redact(f"host=h dbname=d password={SECRET}") == "postgresql://h/d"


def test_every_libpq_parameter_passes_and_defaults_give_way() -> None:
    found = connection_parameters(
        "postgresql://u@h/d?sslmode=verify-ca&connect_timeout=3&target_session_attrs=read-write",
        application_name="walflow test",
    )
    given = {"sslmode": "verify-ca", "connect_timeout": "3"}
    assert found == found | given | {"target_session_attrs": "read-write"}
    assert found["keepalives_idle"]


def test_a_session_that_is_ended_is_a_lost_connection(database: Database) -> None:
    with connect(database.uri, application_name="walflow test") as connection:
        database.execute(f"SELECT pg_terminate_backend({connection.info.backend_pid})")
        with (
            pytest.raises(ConnectionLost, match="Could not do this") as raised,
            source_errors("do this"),
        ):
            connection.execute("SELECT 1")
        assert raised.value.retry
