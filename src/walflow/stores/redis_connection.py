"""The connection to the Redis server. Calls are tried again while the server is away for a moment,
and errors become ours, without the password."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import structlog
import tenacity

from walflow.errors import BadUri, ConfigError, StoreError, StoreForeign
from walflow.redaction import MASK, redacted
from walflow.stores.redis_scripts import FOREIGN

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.exceptions import (
        AuthenticationError,
        AuthorizationError,
        ConnectionError,
        NoPermissionError,
        RedisError,
        ResponseError,
        TimeoutError,
    )
    from redis.retry import Retry
except ModuleNotFoundError as missing:
    raise ConfigError(
        "A store in Redis needs the Python package redis.",
        hint="Install it: pip install 'walflow[redis]'",
    ) from missing

__all__ = ["RedisConnection"]

_log = structlog.get_logger(__name__)

_Answer = TypeVar("_Answer")

_OPEN_SECONDS = 1.0
"""How long a server is tried that was never reached. A wrong address should be reported soon."""

_PATIENCE_SECONDS = 5.0
"""How long a server is tried that was reached before. It restarts in this time."""

_URI_HINT = (
    "A Redis store is redis://user:password@host:port/number, rediss://… for TLS, or "
    "unix:///path/of/the/socket?db=number. Percent-encode what is special in a password."
)
_LOGIN_HINT = (
    "Check user and password in store.uri, and the rights: ACL SETUSER <user> on "
    ">password ~<store.redis_prefix>* +@read +@write +@scripting +@transaction +@connection +time"
)


class RedisConnection:
    """A server, for many threads. Commands must repeat safely."""

    def __init__(self, uri: str) -> None:
        """Raises StoreError within seconds if there is no server."""
        self._shown = redacted(uri)
        try:
            # Repeats are made by `ask`: those of the client itself multiply one another (each
            # attempt to send tries to connect as often again). Settings in the URI win over these.
            self._client = redis.Redis.from_url(
                uri,
                retry=Retry(NoBackoff(), 0),
                decode_responses=True,
                socket_timeout=5,
            )
            self._password: object = self._client.get_connection_kwargs().get("password")
            self.ask(lambda client: client.ping(), patience=_OPEN_SECONDS)
        except (ValueError, TypeError):
            # What these say may be a piece of the password, taken for a port or an option.
            raise BadUri(
                f"{self._shown} is not the address of a Redis server.", hint=_URI_HINT
            ) from None

    def ask(
        self, question: Callable[[redis.Redis], _Answer], *, patience: float = _PATIENCE_SECONDS
    ) -> _Answer:
        """Return the answer. While the server cannot be reached, ask again for so many seconds."""
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(
                lambda error: (
                    isinstance(error, ConnectionError | TimeoutError)
                    and not _is_refused_login(error)
                )
            ),
            stop=tenacity.stop_after_delay(patience),
            wait=tenacity.wait_random_exponential(0.02, 0.5),
            reraise=True,
        )
        try:
            return retrying(question, self._client)
        except (RedisError, UnicodeDecodeError) as error:
            self._fail(error)

    def run(self, script: str, keys: Sequence[str], *arguments: str | int) -> Any:
        """Return the script's result. A server that does not have the script yet gets it first."""
        return self.ask(lambda client: client.register_script(script)(keys, arguments))

    def read_together(self, *commands: Sequence[str]) -> list[Any]:
        """The answers of several commands, as of one moment."""

        def question(client: redis.Redis) -> list[Any]:
            transaction: Any
            with client.pipeline(transaction=True) as transaction:
                for command in commands:
                    transaction.execute_command(*command)
                answers: list[Any] = transaction.execute()
            return answers

        return self.ask(question)

    def warn_of_loss(self) -> None:
        """Warn if the server's configuration may lose what it stores."""
        try:
            settings = self.ask(_durability)
        except StoreError:
            # Managed servers do not show their settings; whether it can be reached is asked
            # elsewhere.
            return
        if settings["appendonly"] == "no" and not settings["save"]:
            _log.warning(
                "the Redis server of the store keeps nothing on disk: when it restarts, all "
                "tables are copied again",
                store=self._shown,
                hint="CONFIG SET appendonly yes, then CONFIG REWRITE",
            )
        policy = settings["maxmemory-policy"]
        # The store's keys never expire, so policies that evict only what expires spare them.
        if policy.startswith("allkeys") and settings["maxmemory"] != "0":
            _log.warning(
                "the Redis server of the store may drop the pipeline's state when memory is short",
                store=self._shown,
                maxmemory_policy=policy,
                hint="CONFIG SET maxmemory-policy noeviction (or volatile-lru), "
                "then CONFIG REWRITE",
            )

    def close(self) -> None:
        """Repeats safely."""
        self._client.close()

    def foreign(self, found: str) -> StoreForeign:
        return StoreForeign(
            f"What the Redis store at {self._shown} holds for this pipeline is not ours: {found}",
            hint="Another walflow (a newer one?) or another program wrote it. Use that version, "
            "or choose another store.redis_prefix or database.",
        )

    def _fail(self, error: Exception) -> NoReturn:
        said = redacted(str(error))
        if isinstance(self._password, str) and self._password:
            # A server that does not know the login's command repeats it, password and all.
            said = said.replace(self._password, MASK)
        # Not chained: the original may show the password.
        if isinstance(error, UnicodeDecodeError) or FOREIGN in said or "WRONGTYPE" in said:
            raise self.foreign(said) from None
        message = f"The Redis store at {self._shown} does not answer as it should: {said}"
        if _is_refused_login(error) or isinstance(error, NoPermissionError):
            raise StoreError(message, hint=_LOGIN_HINT) from None
        if isinstance(error, ResponseError):
            raise StoreError(
                message, hint="See what the server says. Nothing is lost: try again."
            ) from None
        raise StoreError(message) from None


def _is_refused_login(error: BaseException) -> bool:
    return isinstance(error, AuthenticationError | AuthorizationError)


def _durability(client: redis.Redis) -> dict[str, str]:
    # One by one: Redis 6 takes one name only.
    settings: dict[str, str] = {}
    for name in ("appendonly", "save", "maxmemory", "maxmemory-policy"):
        answer: Any = client.config_get(name)
        settings |= answer
    return settings
