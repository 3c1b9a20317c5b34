"""TLS, with certificates of both sides: it serves every way to the source, and what is wrong with
them is told with what to do."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from tests.conftest import Database, fresh_database
from tests.pipeline.capturing import ALWAYS_BULK, LIVE_ONLY, Capture, changes, make_slot, wait_for
from tests.pipeline.running import WAIT
from walflow.checks.findings import Facts, Finding
from walflow.checks.performing import perform
from walflow.config import Settings, TypeSettings, load_settings
from walflow.errors import AuthenticationFailed, CannotConnect, ConfigError, SourceError, Stopped
from walflow.pipeline.publication.published import Published
from walflow.source.catalog.published_tables import published_tables
from walflow.source.connection import Session, connect, source_errors
from walflow.source.copy.range_copy import copy_query, snapshot_session
from walflow.source.copy.ranges import page_ranges, range_query
from walflow.source.copy.snapshot import keep_snapshot
from walflow.source.stream.replication_connection import Replication
from walflow.stores.sql import SqlStore
from walflow.stores.sql_postgres import PostgresDatabase
from walflow.testing.postgres import EmbeddedPostgres, available_versions

ROLE = "certified"
PLAIN_ROLE = "never_in_the_clear"


@dataclass(frozen=True, slots=True)
class Secured:
    """A server that lets one role in only with a certificate, and one only by TLS."""

    server: EmbeddedPostgres
    folder: Path
    """With a certificate and a key each: ``own``, of the server's signer, and ``foreign``."""

    @property
    def verified(self) -> dict[str, str | Path]:
        return {"mode": "verify-full", "root_certificate": self.server.root_certificate}

    @property
    def certified(self) -> dict[str, str | Path]:
        return self.verified | self.shown("own")

    def shown(self, name: str) -> dict[str, str | Path]:
        """The settings that show one of the certificates."""
        return {"certificate": self.folder / f"{name}.crt", "key": self.folder / f"{name}.key"}

    def uri(self, dbname: str, user: str = ROLE, /, **tls: str | Path) -> str:
        uri = self.server.uri_for(dbname, user=user, password="word")
        return settings_with(uri, **tls).source.uri.get_secret_value()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    able = [
        major for major in available_versions() if major >= 14 and EmbeddedPostgres(major).can_tls
    ]
    if not able:
        pytest.skip("no Postgres here has OpenSSL in it; run: python tests/fetch_postgres.py 17")
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make certificates with: install the package openssl")
    with EmbeddedPostgres(max(able), tls=True) as server:
        found = Secured(server, tmp_path_factory.mktemp("certificates"))
        assert server.folder is not None
        make_certificates(found.folder, signer=server.folder)
        rules = server.folder / "data" / "pg_hba.conf"
        rules.write_text(
            f"hostssl all {ROLE} all scram-sha-256 clientcert=verify-full\n"
            f"host all {ROLE} all reject\n"
            f"hostssl all {PLAIN_ROLE} all scram-sha-256\n"
            f"host all {PLAIN_ROLE} all reject\n" + rules.read_text()
            # The first that fits decides.
        )
        with server.connect() as connection:
            for role in (ROLE, PLAIN_ROLE):
                connection.execute(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'word'")
            connection.execute(f"ALTER SYSTEM SET ssl_ca_file = '{server.root_certificate}'")
            connection.execute("SELECT pg_reload_conf()")
        wait_until_asked_for(found)
        yield found


def make_certificates(folder: Path, signer: Path) -> None:
    of_signer = ("-CA", signer / "server.crt", "-CAkey", signer / "server.key", "-set_serial", "7")
    for name, signed in (("own", of_signer), ("foreign", ("-signkey", folder / "foreign.key"))):
        key, request = folder / f"{name}.key", folder / f"{name}.csr"
        openssl(
            *("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-subj", f"/CN={ROLE}", "-keyout", key, "-out", request),
        )
        key.chmod(0o600)
        certificate = folder / f"{name}.crt"
        openssl("x509", "-req", "-in", request, *signed, "-days", "2", "-out", certificate)


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


def wait_until_asked_for(secured: Secured) -> None:
    """A reload takes a moment."""

    def accepted() -> bool:
        try:
            connect(secured.uri("postgres", **secured.certified), application_name="t").close()
        except (AuthenticationFailed, CannotConnect):
            return False
        return True

    wait_for(accepted, WAIT, "the server takes certificates")


@pytest.fixture
def shop(secured: Secured) -> Iterator[Database]:
    for database in fresh_database(secured.server):
        database.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, note text)",
            "INSERT INTO orders SELECT n, repeat('x', 500) FROM generate_series(1, 3000) n",
            "CREATE PUBLICATION p FOR TABLE orders",
            f"GRANT SELECT ON orders TO {ROLE}",
        )
        yield database


def settings_with(uri: str, **tls: str | Path) -> Settings:
    given = {f"source.tls.{key}": value for key, value in tls.items()}
    return load_settings(
        None, {"source.uri": uri, "destination.uri": "http://127.0.0.1:9"} | given, {}
    )


def encrypted_sessions(database: Database) -> dict[str, bool]:
    """Of our role, by the application's name."""
    rows = database.execute(
        "SELECT application_name, bool_and(ssl AND client_dn IS NOT NULL)"
        " FROM pg_stat_activity JOIN pg_stat_ssl USING (pid)"
        f" WHERE usename = '{ROLE}' GROUP BY 1"
    )
    return dict(rows)


# -- it works -------------------------------------------------------------------------------------


@pytest.mark.parametrize("backlog_bytes", [LIVE_ONLY, ALWAYS_BULK], ids=["live", "bulk"])
def test_changes_are_captured_by_certificate(
    secured: Secured, shop: Database, tmp_path: Path, backlog_bytes: int
) -> None:
    uri, slot = secured.uri(shop.name, **secured.certified), f"slot_{shop.name}"
    make_slot(uri, slot)
    shop.execute("UPDATE orders SET note = 'y'")
    with Capture(uri, tmp_path, slot=slot, backlog_bytes=backlog_bytes) as capture:
        capture.wait(capture.receiver.streaming.is_set)
        sessions = encrypted_sessions(shop)
        assert sessions
        assert all(sessions.values()), sessions
        shop.execute("DELETE FROM orders WHERE id > 2990")
        capture.catch_up()
        (found,) = changes(capture.log).values()
    assert [row["_change_type"] for _, row in found] == ["update"] * 3000 + ["delete"] * 10


def test_tables_are_copied_by_certificate(secured: Secured, shop: Database, tmp_path: Path) -> None:
    uri = secured.uri(shop.name, **secured.certified)
    with Replication(uri, application_name="t") as replication:
        made = replication.create_slot(f"slot_{shop.name}")
        keeper = keep_snapshot(uri, made.snapshot)
    with (
        keeper,
        snapshot_session(
            uri, keeper.name, application_name="walflow copy", lock_seconds=10
        ) as session,
    ):
        (table,) = published_tables(session, "p", TypeSettings())
        # The server takes a moment to see that the one that made the slot has gone.
        ours = {"walflow snapshot": True, "walflow copy": True}
        wait_for(lambda: encrypted_sessions(shop) == ours, WAIT)
        ranges = page_ranges(table, 200_000)
        files = [
            copy_query(
                session, range_query(table, piece), table.schema, tmp_path / f"{place}.parquet"
            )
            for place, piece in enumerate(ranges)
        ]
    assert len(files) > 3
    ids = [
        number
        for file in files
        if file is not None
        for number in parquet.read_table(tmp_path / file.name, columns=["id"])["id"].to_pylist()
    ]
    assert sorted(ids) == list(range(1, 3001))


def test_a_root_certificate_as_text(
    secured: Secured, shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the URI, which executors are given, and in a file only while they connect."""
    assert secured.server.root_certificate is not None
    root = secured.server.root_certificate.read_text()
    own = (secured.folder / "own.crt").read_text()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # In one line, as some keepers of secrets have it, behind what openssl writes before it, and
    # as it is in the file.
    for given in (root.replace("\n", "\\n"), f"subject=CN = shop\n\n{root}", root):
        tls = secured.certified | {"root_certificate": given, "certificate": own}
        uri = secured.uri(shop.name, **tls)
        for replication in (None, "database"):
            with connect(uri, application_name="as text", replication=replication) as session:
                assert session.pgconn.ssl_in_use
                assert encrypted_sessions(shop) == {"as text": True}
                assert list(tmp_path.iterdir()) == []
    # Another process, as an executor is, that can reach no file of this one's.
    program = (
        "import sys; from walflow.source.connection import connect\n"
        "with connect(sys.stdin.read(), application_name='t') as s: print(s.pgconn.ssl_in_use)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], input=uri, capture_output=True, text=True, timeout=60
    )
    assert (ran.returncode, ran.stdout) == (0, "True\n"), ran.stderr
    # It is looked at: the server's is signed by somebody else.
    foreign = (secured.folder / "foreign.crt").read_text()
    error = refused(secured.uri("postgres", **secured.certified | {"root_certificate": foreign}))
    assert "certificate verify failed" in error.message
    assert "BEGIN" not in error.message
    assert list(tmp_path.iterdir()) == []


def test_a_store_with_certificates_as_text(secured: Secured, shop: Database) -> None:
    assert secured.server.root_certificate is not None
    root, own = (
        secured.server.root_certificate.read_text(),
        (secured.folder / "own.crt").read_text(),
    )
    tls = secured.certified | {"root_certificate": root, "certificate": own}
    shop.execute(f"GRANT CREATE ON DATABASE {shop.name} TO {ROLE}")
    with closing(SqlStore(PostgresDatabase(secured.uri(shop.name, **tls), "walflow"), "shop")):
        assert encrypted_sessions(shop) == {"walflow_store": True}


def test_a_question_is_given_up_with_certificates_as_text(secured: Secured, shop: Database) -> None:
    @source_errors("sleep")
    def sleep(session: Session) -> None:
        session.execute("SELECT pg_sleep(600)")

    assert secured.server.root_certificate is not None
    root = secured.server.root_certificate.read_text()
    own = (secured.folder / "own.crt").read_text()
    tls = secured.certified | {"root_certificate": root, "certificate": own}
    with (
        ThreadPoolExecutor(1) as pool,
        Published(secured.uri(shop.name, **tls), "t", "p", TypeSettings()) as published,
    ):
        answer = pool.submit(published._ask, sleep)
        asleep = (
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event = 'PgSleep'"
        )
        wait_for(lambda: shop.execute(asleep) == [(1,)], WAIT)
        published.close()
        with pytest.raises(Stopped):
            answer.result(WAIT)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("key", "walflow writes no private key"),
        ("root_certificate", "contains a private key"),
        ("certificate", "looks like the text of a certificate, but has none"),
    ],
)
@pytest.mark.parametrize("before", ["", "Bag Attributes\n    friendlyName: shop\n"])
def test_text_that_is_no_certificate(setting: str, words: str, before: str) -> None:
    kind = "CERTIFICATE" if setting == "certificate" else "EC PRIVATE KEY"
    text = f"{before}-----BEGIN {kind}-----\nc2VjcmV0\n-----END {kind}-----"
    with pytest.raises(ConfigError, match=words) as raised:
        settings_with("postgresql://h/d", **{setting: text})
    assert "c2VjcmV0" not in str(raised.value)


def test_check_says_whether_the_connection_is_encrypted(secured: Secured, shop: Database) -> None:
    clear = shop.server.uri_for(shop.name, sslmode="disable")
    certified = secured.uri(shop.name, **secured.certified)
    for uri, words in ((certified, "(encrypted)"), (clear, "(not encrypted)")):
        found = connection_finding(settings_with(uri))
        assert found.verdict == "ok"
        assert found.message.endswith(words)
        assert "\n" not in found.message


def connection_finding(settings: Settings) -> Finding:
    return next(
        found for found in perform(Facts(settings, quick=True)) if found.check == "connection"
    )


# -- it is refused --------------------------------------------------------------------------------


def refused(uri: str) -> SourceError:
    """What both kinds of session are told."""
    told = []
    for replication in (None, "database"):
        with pytest.raises((CannotConnect, AuthenticationFailed)) as raised:
            connect(uri, application_name="t", replication=replication)
        told.append(raised.value)
    assert [type(error) for error in told] == [type(told[0])] * 2
    assert told[0].hint == told[1].hint
    return told[0]


def test_a_server_that_somebody_else_signed(secured: Secured) -> None:
    tls = secured.certified | {"root_certificate": secured.folder / "foreign.crt"}
    error = refused(secured.uri("postgres", **tls))
    assert isinstance(error, CannotConnect)
    assert "certificate verify failed" in error.message
    assert "source.tls.root_certificate" in error.hint


def test_a_server_of_another_name(secured: Secured) -> None:
    uri = secured.uri("postgres", **secured.certified)
    named = uri.replace("@127.0.0.1:", "@shop.example:") + "&hostaddr=127.0.0.1"
    error = refused(named)
    assert isinstance(error, CannotConnect)
    assert 'does not match host name "shop.example"' in error.message
    assert "hostaddr" in error.hint
    # As the hint says, this mode does not compare names.
    with connect(named.replace("verify-full", "verify-ca"), application_name="t") as session:
        assert session.pgconn.ssl_in_use


def test_a_root_certificate_that_is_not_there(secured: Secured) -> None:
    error = refused(secured.uri("postgres", root_certificate=secured.folder / "none.crt"))
    assert isinstance(error, CannotConnect)
    assert "none.crt" in error.message
    assert "source.tls.root_certificate" in error.hint


def test_our_own_certificate_is_missing_or_not_trusted(secured: Secured) -> None:
    nothing = {"certificate": secured.folder / "none.crt", "key": secured.folder / "none.key"}
    for shown in ({}, nothing):
        error = refused(secured.uri("postgres", **secured.verified, **shown))
        # Asking again does not help, as with a wrong password.
        assert isinstance(error, AuthenticationFailed)
        assert "requires a valid client certificate" in error.message
        assert "source.tls.certificate and source.tls.key" in error.hint
    foreign = secured.uri("postgres", **secured.verified, **secured.shown("foreign"))
    # In 1.3 the server hangs up after the handshake, and why may get lost on the way.
    error = refused(f"{foreign}&ssl_max_protocol_version=TLSv1.2")
    assert isinstance(error, CannotConnect)
    assert "does not trust the client certificate" in error.hint


def test_our_own_key_cannot_be_used(secured: Secured, tmp_path: Path) -> None:
    open_to_all = tmp_path / "open.key"
    open_to_all.write_bytes((secured.folder / "own.key").read_bytes())
    open_to_all.chmod(0o644)
    for key in (open_to_all, secured.folder / "foreign.key", secured.folder / "none.key"):
        error = refused(secured.uri("postgres", **secured.certified | {"key": key}))
        assert isinstance(error, CannotConnect)
        assert key.name in error.message
        assert "chmod 600" in error.hint


def test_a_role_that_is_let_in_by_tls_only(secured: Secured) -> None:
    error = refused(secured.uri("postgres", PLAIN_ROLE, mode="disable"))
    assert isinstance(error, AuthenticationFailed)
    assert "source.tls.mode=require" in error.hint
    with connect(secured.uri("postgres", PLAIN_ROLE, mode="require"), application_name="t"):
        pass


def test_a_server_without_tls(database: Database, tmp_path: Path) -> None:
    def uri(**tls: str | Path) -> str:
        return settings_with(database.uri, **tls).source.uri.get_secret_value()

    for mode in ("disable", "prefer"):
        with connect(uri(mode=mode), application_name="t") as session:
            assert session.pgconn.ssl_in_use is False
    # Who names a certificate wants it looked at.
    for tls in ({"mode": "require"}, {"root_certificate": tmp_path / "a.crt"}):
        with pytest.raises(CannotConnect, match="SSL, but SSL was required") as raised:
            connect(uri(**tls), application_name="t")
        assert "ssl = on" in raised.value.hint
