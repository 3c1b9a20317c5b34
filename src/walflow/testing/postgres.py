"""A real Postgres in a temporary folder, for tests, the demo and benchmarks.

It listens on a free port of 127.0.0.1 only, with wal_level = logical, and ends with its owner: at
``stop()``, at the end of the ``with`` block, and when the owning process dies in any way (on Linux
even by ``kill -9``).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from walflow.errors import PostgresMissing, SourceError
from walflow.testing.accounts import as_account, check_reachable, may_enter, server_account
from walflow.testing.owned import OwnedServer
from walflow.testing.postgres_binaries import (
    available_versions,
    find_binaries,
    major_version,
)

__all__ = ["EmbeddedPostgres", "available_versions", "find_binaries"]

_START_SECONDS = 60.0


class EmbeddedPostgres(OwnedServer):
    """One server. The first ``start()`` creates the cluster. Later ones use it again."""

    _port_taken = "could not bind"
    # Fast, then immediate.
    _orderly = (signal.SIGINT, signal.SIGQUIT)
    _at_once = signal.SIGQUIT
    _stop_seconds = 30.0

    def __init__(
        self,
        version: int | None = None,
        *,
        binaries: Path | None = None,
        fsync: bool = False,
        settings: Mapping[str, str | int | bool] | None = None,
        tls: bool = False,
    ) -> None:
        """``settings`` go into the server's configuration and win over ours.

        ``fsync`` is for benchmarks: without it the cluster survives ``crash()``, but not a crash
        of the machine. ``tls`` makes a self-signed certificate; ``root_certificate`` is then what
        ``sslrootcert`` takes. Not every build can: see ``can_tls``.
        """
        super().__init__()
        self._source_binaries = binaries or find_binaries(version)
        self.version = major_version(self._source_binaries)
        self.user = "postgres"
        self.password = secrets.token_urlsafe(12)
        self._settings = dict(settings or {})
        self._fsync = fsync
        self._tls = tls
        self._binaries = self._source_binaries
        self._account = server_account()

    # -- use ----------------------------------------------------------------------------------

    @property
    def uri(self) -> str:
        return self.uri_for("postgres")

    def uri_for(
        self, dbname: str, *, user: str | None = None, password: str | None = None, **options: str
    ) -> str:
        """A URI for this database, as the superuser or as the named role."""
        who = quote(user or self.user, safe="")
        word = quote(self.password if user is None else (password or ""), safe="")
        login = f"{who}:{word}" if word else who
        tail = "&".join(f"{name}={quote(value, safe='')}" for name, value in options.items())
        base = f"postgresql://{login}@127.0.0.1:{self.port}/{quote(dbname, safe='')}"
        return f"{base}?{tail}" if tail else base

    def connect(
        self, dbname: str = "postgres", *, autocommit: bool = True, **options: Any
    ) -> psycopg.Connection[tuple[Any, ...]]:
        """A superuser's session."""
        return psycopg.connect(self.uri_for(dbname), autocommit=autocommit, **options)

    def tool(self, name: str) -> Path:
        """A client program (psql, pgbench, pg_recvlogical): ours, or a newer version's."""
        versions = available_versions()
        newer = [versions[major] for major in sorted(versions) if major >= self.version]
        for folder in (self._binaries, *newer):
            if (folder / name).exists():
                return folder / name
        raise PostgresMissing(
            f"No {name} of Postgres {self.version} or newer is on this machine.",
            hint="pip install 'walflow[postgres]' brings the client programs.",
        )

    @property
    def psql(self) -> Path:
        return self.tool("psql")

    @property
    def pgbench(self) -> Path:
        return self.tool("pgbench")

    @property
    def pg_recvlogical(self) -> Path:
        return self.tool("pg_recvlogical")

    @property
    def can_tls(self) -> bool:
        """Whether this build has OpenSSL (the wheel's builds do not)."""
        return b"SSL_CTX_new" in (self._source_binaries / "postgres").read_bytes()

    @property
    def root_certificate(self) -> Path:
        return self._folder / "server.crt"

    # -- how ----------------------------------------------------------------------------------

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _not_started(self, log_tail: str) -> SourceError:
        return SourceError(
            f"The embedded Postgres {self.version} did not start. Its log ends with:\n{log_tail}"
        )

    def _make_folder(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="walflow-pg-"))
        try:
            self._give_away(self.folder)
            check_reachable(self._account, self.folder)
            self._binaries = self._reachable_binaries()
            word_file = self.folder / "password"
            word_file.touch(mode=0o600)
            word_file.write_text(self.password + "\n")
            self._give_away(word_file)
            self._run_initdb(word_file)
            word_file.unlink()
            if self._tls:
                self._make_certificate()
            self._write_settings()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None
            raise

    def _run_initdb(self, word_file: Path) -> None:
        command: list[str | Path] = [self._binaries / "initdb", "-D", self._data, "-U", self.user]
        command += ["--encoding=UTF8", "--locale=C", "--no-sync", f"--pwfile={word_file}"]
        command += ["--auth-local=trust", "--auth-host=scram-sha-256"]
        made = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_START_SECONDS * 2,
            cwd=self._folder,
            check=False,
            **as_account(self._account),
        )
        if made.returncode:
            raise SourceError(
                f"initdb of the embedded Postgres failed:\n{made.stdout}{made.stderr}"
            )

    def _write_settings(self) -> None:
        settings: dict[str, str | int | bool] = {
            "wal_level": "logical",
            "max_connections": 150,
            "max_replication_slots": 50,
            "max_wal_senders": 50,
            "fsync": self._fsync,
            "full_page_writes": self._fsync,
            "max_wal_size": "4GB",
            "listen_addresses": "127.0.0.1",
            # A socket's path may have 107 bytes; without room for it TCP alone serves.
            "unix_socket_directories": str(self._folder) if len(str(self._folder)) < 80 else "",
            "ssl": self._tls,
        }
        if self._tls:
            settings |= {
                "ssl_cert_file": str(self._folder / "server.crt"),
                "ssl_key_file": str(self._folder / "server.key"),
            }
        lines = [
            f"{name} = {_setting(value)}" for name, value in (settings | self._settings).items()
        ]
        with (self._data / "postgresql.conf").open("a") as file:
            file.write("\n" + "\n".join(lines) + "\n")

    def _make_certificate(self) -> None:
        if not self.can_tls:
            raise PostgresMissing(
                f"The Postgres in {self._source_binaries} was built without OpenSSL.",
                hint="Use a version whose `can_tls` is true, such as Debian's.",
            )
        key, certificate = self._folder / "server.key", self._folder / "server.crt"
        command: list[str | Path] = ["openssl", "req", "-new", "-x509", "-nodes", "-days", "2"]
        command += ["-newkey", "rsa:2048", "-subj", "/CN=localhost"]
        command += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
        command += ["-keyout", key, "-out", certificate]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        key.chmod(0o600)
        self._give_away(key)
        self._give_away(certificate)

    def _launch(self) -> bool:
        account = self._account
        self._run(
            [self._binaries / "postgres", "-D", self._data, "-p", str(self.port)],
            (-1, -1) if account is None else (account.pw_uid, account.pw_gid),
        )
        deadline = time.monotonic() + _START_SECONDS
        while self.running and time.monotonic() < deadline:
            with contextlib.suppress(psycopg.OperationalError), self.connect(connect_timeout=5):
                return True
            time.sleep(0.03)
        return False

    def _give_away(self, path: Path) -> None:
        if self._account is not None:
            os.chown(path, self._account.pw_uid, self._account.pw_gid)

    def _reachable_binaries(self) -> Path:
        """The bin folder, or a copy of it if the server's account cannot enter it."""
        if self._account is None or may_enter(self._account, self._source_binaries / "postgres"):
            return self._source_binaries
        copy = self._folder / "install"
        installed = self._source_binaries.parent
        # A wheel has its libraries beside the package, and the programs look for them there.
        package = installed.parent
        libraries = package.with_name(f"{package.name}.libs")
        own = copy / package.name / installed.name
        shutil.copytree(installed, own, symlinks=True)
        if libraries.is_dir():
            shutil.copytree(libraries, copy / libraries.name, symlinks=True)
        for path in (copy, *copy.rglob("*")):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
        return own / self._source_binaries.name


def _setting(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "'" + str(value).replace("'", "''") + "'"
