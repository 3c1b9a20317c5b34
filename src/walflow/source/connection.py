"""Ordinary sessions on the source, and what their failures mean.

A source is named by a URI or by libpq's ``key=value`` form; every libpq parameter passes. No
message made here shows a password.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from walflow.config.tls import in_files
from walflow.errors import (
    AuthenticationFailed,
    BadUri,
    CannotConnect,
    ConnectionLost,
    NoFreeSender,
    NoFreeSlot,
    NoReplicationRight,
    NoSelectRight,
    PublicationMissing,
    SlotInUse,
    SlotLost,
    SourceError,
    TableLocked,
    WalflowError,
    WalLevelNotLogical,
)
from walflow.model import quote_identifier
from walflow.source.codec.values import SESSION_OPTIONS

__all__ = [
    "Session",
    "connect",
    "connection_failure",
    "connection_parameters",
    "lift_timeouts",
    "redact",
    "replication_hint",
    "source_error",
    "source_errors",
    "without_secrets",
]

Session = psycopg.Connection[tuple[Any, ...]]

# Without these a vanished server is noticed after hours; what the user's URI says wins.
_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    # Keepalives are for quiet connections; this is for one that says something and gets no answer.
    "tcp_user_timeout": "60000",
}

_URI_HINT = (
    "The form is postgresql://user:password@host:port/database. Characters such as @ : / ? # in "
    "user name or password must be percent-encoded: @ is %40, : is %3A, / is %2F, # is %23."
)

_NOT_ACCEPTED = re.compile(
    r"authentication failed|no pg_hba\.conf entry|pg_hba\.conf rejects|no password supplied"
    r'|role ".*" does not exist|is not permitted to log in|password is expired'
    r"|requires a valid client certificate|permission denied for database",
    re.IGNORECASE,
)
_NO_SENDER = re.compile(r"max_wal_senders|reserved for .*replication", re.IGNORECASE)
_NO_REPLICATION = re.compile(
    r"start wal ?sender|replication role to start|REPLICATION attribute", re.IGNORECASE
)

_SLOT_LOST_HINT = (
    "The changes since the last position are gone from the source: drop the slot if it still "
    "exists (SELECT pg_drop_replication_slot('name');) and start again, which copies the tables."
)

# (what it means, SQL states, words, hint; None: the class's own)
_MEANINGS: tuple[tuple[type[SourceError], tuple[str, ...], str, str | None], ...] = (
    (SlotInUse, ("55006",), "slot", "Stop the other reader, or give this pipeline another slot."),
    (NoFreeSlot, ("53400",), "slot", None),
    (NoFreeSender, ("53300",), "wal_senders", None),
    (CannotConnect, ("53300",), "", "The server has no connection left: raise max_connections."),
    (WalLevelNotLogical, ("55000",), "wal_level", None),
    (
        CannotConnect,
        ("55000",),
        "recovery is in progress",
        "The server is a standby, or is starting.",
    ),
    (TableLocked, ("55P03",), "", None),
    (SlotLost, ("42704",), "replication slot", _SLOT_LOST_HINT),
    (SlotLost, ("55000", "58P01"), "slot|WAL segment", _SLOT_LOST_HINT),
    (PublicationMissing, ("42704",), "publication", "Create it: CREATE PUBLICATION …;"),
    (
        NoReplicationRight,
        ("42501",),
        "replication|wal ?sender",
        "As superuser: ALTER ROLE … REPLICATION;",
    ),
    (
        NoSelectRight,
        ("42501",),
        "table|schema|relation|column",
        "Grant the role USAGE on the schema and SELECT on the table.",
    ),
)


def connection_parameters(
    uri: str,
    *,
    application_name: str,
    options: str = SESSION_OPTIONS,
    replication: str | None = None,
) -> dict[str, str | None]:
    """libpq's parameters for one of our sessions. The URI's own ``options`` stay, and ours are
    added after them, because decoding relies on ours."""
    parameters: dict[str, str | None] = {**_DEFAULTS, "application_name": application_name}
    parameters |= _parse(uri)
    parameters["options"] = " ".join(part for part in (parameters.get("options"), options) if part)
    parameters["client_encoding"] = "UTF8"
    parameters["replication"] = replication
    return parameters


def connect(
    uri: str,
    *,
    application_name: str,
    options: str = SESSION_OPTIONS,
    replication: str | None = None,
) -> Session:
    """An autocommit session. Raises ``BadUri``, ``AuthenticationFailed`` or ``CannotConnect``.

    ``replication="database"`` makes it a replication connection, which can also fail with
    ``NoReplicationRight`` and ``NoFreeSender``.
    """
    parameters = connection_parameters(
        uri, application_name=application_name, options=options, replication=replication
    )
    try:
        with in_files(parameters) as given:
            # Prepared statements would not survive a transaction pooler between us and the server.
            return psycopg.connect(
                make_conninfo("", **given), autocommit=True, prepare_threshold=None
            )
    except psycopg.Error as error:
        raise connection_failure(error, uri) from None


def connection_failure(error: psycopg.Error, uri: str) -> WalflowError:
    """The error for a failed attempt to connect."""
    text = _one_line(error)
    where = redact(uri)
    if _NO_SENDER.search(text):
        return NoFreeSender(f"No replication connection is free at {where}: {text}")
    if _NO_REPLICATION.search(text):
        return NoReplicationRight(
            f"The role may not replicate from {where}: {text}", hint=replication_hint(user_of(uri))
        )
    if _NOT_ACCEPTED.search(text):
        return AuthenticationFailed(
            f"{where} does not accept the login: {text}", hint=_tls_hint(text)
        )
    if "invalid connection option" in text or ("invalid" in text and "value:" in text):
        return BadUri(f"A parameter in {where} is wrong: {text}")
    return CannotConnect(f"Cannot connect to {where}: {text}", hint=_tls_hint(text))


def replication_hint(role: str) -> str:
    """How to give a role the right to replicate."""
    name = quote_identifier(role)
    return (
        f"As superuser: ALTER ROLE {name} REPLICATION; "
        f"(on Amazon RDS and Aurora: GRANT rds_replication TO {name};)"
    )


def user_of(uri: str) -> str:
    return str(_parse(uri).get("user") or "the_role")


def redact(uri: str) -> str:
    """The source as messages may show it: user, host, port and database only."""
    try:
        given = _parse(uri)
    except BadUri:
        return "the source"
    user = f"{given['user']}@" if given.get("user") else ""
    hosts = str(given.get("host") or given.get("hostaddr") or "localhost").split(",")
    ports = str(given.get("port") or "").split(",")
    pairs = [
        f"{host}:{port}" if port else host
        for host, port in zip(hosts, ports * len(hosts) if len(ports) == 1 else ports, strict=False)
    ]
    return f"postgresql://{user}{','.join(pairs)}/{given.get('dbname') or ''}"


def without_secrets(uri: str) -> tuple[str, bool]:
    """The parts of the URI with which libpq finds the source again, and whether there was more: a
    password."""
    given = _parse(uri)
    plain = {key: value for key, value in given.items() if "password" not in key}
    return make_conninfo("", **plain), len(plain) < len(given)


def source_error(
    message: str | bytes | None, sqlstate: str | bytes | None, doing: str = ""
) -> SourceError:
    """The error for an error of the server, or for a lost connection. ``doing`` completes "Could
    not …"."""
    text = _one_line(message) or "the connection was closed"
    state = sqlstate.decode() if isinstance(sqlstate, bytes) else sqlstate or ""
    cause = f"Could not {doing}: {text}" if doing else text
    for kind, states, pattern, hint in _MEANINGS:
        if state in states and re.search(pattern, text, re.IGNORECASE):
            return kind(cause, hint=hint)
    # Class 08: connection. 57P01 to 57P05: ended by an administrator, a crash or a timeout.
    if not state or state.startswith(("08", "57P")):
        return ConnectionLost(cause)
    return SourceError(cause)


@contextmanager
def source_errors(doing: str) -> Iterator[None]:
    """Turn psycopg's errors in the block into ours. ``doing`` completes "Could not …"."""
    try:
        yield
    except psycopg.Error as error:
        raise source_error(str(error), error.sqlstate, doing) from error


def lift_timeouts(connection: Session) -> None:
    """Switch off timeouts of the role or server: they must not end a copy that takes hours."""
    names = ["statement_timeout", "idle_in_transaction_session_timeout", "lock_timeout"]
    if connection.info.server_version >= 170000:
        names.append("transaction_timeout")
    for name in names:
        connection.execute(f"SET {name} = 0")


def _one_line(text: object) -> str:
    shown = text.decode(errors="replace") if isinstance(text, bytes) else str(text or "")
    return " ".join(shown.split())


def _parse(uri: str) -> dict[str, Any]:
    text = uri.strip()
    if not re.match(r"postgres(ql)?://", text) and not re.match(r"[a-z_]+\s*=", text):
        raise BadUri("The source is not a Postgres URI.", hint=_URI_HINT)
    try:
        given: dict[str, Any] = dict(conninfo_to_dict(text))
    except psycopg.ProgrammingError as error:
        raise BadUri(
            f"The source's URI cannot be read: {_without_quotes(str(error))}", hint=_URI_HINT
        ) from None
    # A password with unescaped characters ends up elsewhere: say so, without showing it.
    host, port = str(given.get("host") or ""), str(given.get("port") or "")
    if "@" in host or ("/" in host and not host.startswith("/")):
        raise BadUri("The source's URI has an impossible host.", hint=_URI_HINT)
    if not re.fullmatch(r"[\d,]*", port):
        raise BadUri("The source's URI has an impossible port.", hint=_URI_HINT)
    if "@" in str(given.get("dbname") or "") and not given.get("user"):
        raise BadUri("The source's URI has no user, but an @ in the database.", hint=_URI_HINT)
    if "://" in text and text.partition("?")[0].count("@") > 1:
        raise BadUri("The source's URI has more than one @.", hint=_URI_HINT)
    return given


def _without_quotes(text: str) -> str:
    """Remove the quoted text: libpq quotes what it could not read, which may be a password."""
    return re.sub(r'"[^"]*"(?!")', '"…"', _one_line(text)).rstrip(".") + "."


_ROOT = "source.tls.root_certificate (sslrootcert)"
_OWN = "source.tls.certificate and source.tls.key (sslcert, sslkey)"

# Looked for from the top; the words are libpq's, OpenSSL's and the server's.
_HINTS = (
    (
        r"certificate verify failed",
        f"{_ROOT} did not sign the server's certificate, or that has expired: name the certificate "
        "that signed it, or `system` if this machine trusts that one.",
    ),
    (
        r"does not match host name",
        "The server's certificate is for other names: use one of them as the URI's host (with "
        "hostaddr=… if it does not resolve to the server), or give the server a certificate for "
        "this name. source.tls.mode=verify-ca does not compare names, so it accepts any server "
        "with a certificate of the same signer.",
    ),
    (
        r"root certificate file",
        f"Put the certificate that signed the server's there, or name it with {_ROOT}; `system` "
        "means those that this machine trusts. Spark's executors need the file too.",
    ),
    (
        r"requires a valid client certificate|certificate authentication failed",
        f"The server requires a client certificate for this user: name it with {_OWN}. libpq "
        "ignores a file that does not exist.",
    ),
    (
        r"alert (unknown ca|bad certificate|certificate)|alert decrypt error",
        f"The server does not trust the client certificate: {_OWN} must be signed by one in the "
        "server's ssl_ca_file, and not expired.",
    ),
    (
        r"private key file|could not (read|open) certificate file",
        f"Check {_OWN}: they must belong together and be readable here, and the key must be "
        "readable only by its owner (chmod 600). Spark's executors need the files too.",
    ),
    (
        r"does not support SSL, but SSL was required",
        "Turn on TLS at the server (ssl = on, a certificate and a key), or, on a private network, "
        "do without it: --set source.tls.mode=disable",
    ),
    (
        r"alert protocol version|unsupported protocol|SSL protocol version",
        "This machine and the server have no TLS version in common: see "
        "ssl_min_protocol_version and ssl_max_protocol_version, in the URI and at the server.",
    ),
    (
        # With both, TLS was tried first, and is not what is missing.
        r"^(?!.*SSL encryption).*pg_hba\.conf.*no encryption",
        "If the server accepts this user only with TLS: --set source.tls.mode=require. Else check "
        "its pg_hba.conf.",
    ),
)


def _tls_hint(text: str) -> str | None:
    """What to do about a failed attempt to connect, in one line. None: TLS is not the cause."""
    return next((hint for pattern, hint in _HINTS if re.search(pattern, text, re.IGNORECASE)), None)
