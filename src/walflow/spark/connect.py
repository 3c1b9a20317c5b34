"""Sessions on a Spark Connect server.

A client has no JVM. Jars and static settings are the server's, so what a destination needs of
them is looked for at once; all else is set on the session.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from walflow.errors import ConfigError, JarsMissing, SparkError
from walflow.spark.conf import SESSION_CONF, shuffle_partitions
from walflow.spark.jars import Package

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["clone_remote", "connect_remote", "disconnect", "is_remote_session", "release_remote"]

_EXTENSIONS = "spark.sql.extensions"
_CATALOGS = "spark.sql.catalog."
_DEFAULT_PORT = 15002
# PySpark switches its functions by this, for the whole process.
_MODE = "SPARK_CONNECT_MODE_ENABLED"
# Each attempt waits four times as long as the one before it, from 50 ms on.
_ATTEMPTS_AT_FIRST = 4
_ATTEMPTS = 5


def is_remote_session(session: SparkSession) -> bool:
    return type(session).__module__.startswith("pyspark.sql.connect.")


def connect_remote(
    remote: str,
    conf: Mapping[str, str],
    packages: Iterable[Package],
    extra_conf: Mapping[str, str],
    debug: bool,
) -> SparkSession:
    """A session on the server, with all settings that it needs.

    The user's ``conf`` wins over ``extra_conf``. SparkError: no server, or it lacks something.
    """
    address = _address(remote)
    _check_packages()
    if not debug:
        _be_quiet()
    session = _open(remote, address)
    try:
        _check_server(session, address, packages, extra_conf)
        _set_conf(session, address, conf, extra_conf)
    except BaseException:
        disconnect(session)
        raise
    return session


def clone_remote(session: SparkSession) -> SparkSession:
    remote: Any = session
    clone = remote.cloneSession()
    # Left out by PySpark 4.1, whose stop() then fails.
    clone.release_session_on_close = True
    _hold(clone, _ATTEMPTS)
    return clone  # type: ignore[no-any-return]


def release_remote(session: SparkSession) -> None:
    """Let the server forget the session. A dead server is no error."""
    _hold(session, 0)
    session.stop()
    # The session's finaliser closes its client once more, and waits for threads that all clients
    # share. Run by the garbage collector inside another call, it would wait for itself.
    remote: Any = session
    remote.client.close = lambda: None


def disconnect(session: SparkSession) -> None:
    """Release the last session: this process may have one of another kind then."""
    release_remote(session)
    os.environ.pop(_MODE, None)


def _address(remote: str) -> str:
    """Host and port: all that may be shown, because a token may follow."""
    parts = urlsplit(remote)
    try:
        port = parts.port or _DEFAULT_PORT
    except ValueError:
        port = None
    if parts.scheme != "sc" or not parts.hostname or port is None:
        raise ConfigError(
            "spark.remote is not the address of a Spark Connect server",
            hint="It looks like sc://host:15002, with options after it: "
            "sc://host:15002/;use_ssl=true.",
        )
    return f"{parts.hostname}:{port}"


def _check_packages() -> None:
    from pyspark.errors import PySparkImportError

    try:
        import pyspark.sql.connect.session  # noqa: F401
    except (PySparkImportError, ImportError) as error:
        raise SparkError(
            f"Spark Connect needs Python packages that are missing: {_first_line(error)}",
            hint="pip install 'walflow[connect]'",
        ) from error


def _be_quiet() -> None:
    """What PySpark logs here or warns of, it raises as well."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]", UserWarning)


def _open(remote: str, address: str) -> SparkSession:
    from pyspark.sql import SparkSession

    try:
        session: SparkSession = SparkSession.builder.remote(remote).create()
    except Exception as error:
        os.environ.pop(_MODE, None)
        raise SparkError(
            f"no session on the Spark Connect server {address}: {_first_line(error)}",
            hint="See which options sc:// addresses have: "
            "https://spark.apache.org/docs/latest/spark-connect-overview.html",
        ) from error
    _hold(session, _ATTEMPTS_AT_FIRST)
    try:
        # The first call that reaches the server.
        session.version  # noqa: B018
    except Exception as error:
        disconnect(session)
        raise SparkError(
            f"the Spark Connect server {address} cannot be reached: {_first_line(error)}",
            hint="Check spark.remote, and that the server runs and accepts connections from here.",
        ) from error
    _hold(session, _ATTEMPTS)
    return session


def _hold(session: SparkSession, attempts: int) -> None:
    """How long the client tries to reach a server that does not answer; by itself, ten minutes
    for each call and once more at the end of the process."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    remote: Any = session
    client = remote.client
    client.set_retry_policies([DefaultPolicy(max_retries=attempts)] if attempts else [])
    atexit.unregister(client._cleanup_ml_cache)


def _check_server(
    session: SparkSession, address: str, packages: Iterable[Package], extra: Mapping[str, str]
) -> None:
    """The server must have been started with the jars and the extensions that are wanted."""
    wanted = _names(extra.get(_EXTENSIONS))
    catalogs = {
        value
        for name, value in extra.items()
        if name.startswith(_CATALOGS) and "." not in name.removeprefix(_CATALOGS)
    }
    options = []
    if absent := [name for name in (*wanted, *sorted(catalogs)) if not _has_class(session, name)]:
        options.append(f"--packages {','.join(package.coordinate for package in packages)}")
    there = _names(session.conf.get(_EXTENSIONS, None))
    if unset := [name for name in wanted if name not in there]:
        options.append(f"--conf {_EXTENSIONS}={','.join([*there, *unset])}")
    if not options:
        return
    kind = JarsMissing if absent else SparkError
    raise kind(
        f"the Spark Connect server {address} lacks "
        + " and ".join(
            [*(f"the class {name}" for name in absent), *(f"the extension {x}" for x in unset)]
        ),
        hint="A client cannot add it. Start the server with "
        f"start-connect-server.sh {' '.join(options)}",
    )


def _names(value: str | None) -> list[str]:
    return [name.strip() for name in (value or "").split(",") if name.strip()]


def _has_class(session: SparkSession, name: str) -> bool:
    from pyspark.errors import AnalysisException

    try:
        # Never called: it has no such method. Spark says first if there is no such class.
        session.sql(f"SELECT reflect('{name}', 'walflow')").schema  # noqa: B018
    except AnalysisException as error:
        return error.getCondition() != "DATATYPE_MISMATCH.UNEXPECTED_CLASS_TYPE"
    return True


def _set_conf(
    session: SparkSession, address: str, conf: Mapping[str, str], extra: Mapping[str, str]
) -> None:
    ours = {
        **SESSION_CONF,
        "spark.sql.shuffle.partitions": str(shuffle_partitions(None)),
        **{name: value for name, value in extra.items() if name != _EXTENSIONS},
    }
    for name, value in {**ours, **conf}.items():
        if not _set(session, name, value):
            raise ConfigError(
                f"spark.conf has {name}, which the Spark Connect server {address} must be "
                "started with",
                hint=f"Start the server with --conf {name}=…, or leave it out here.",
            )


def _set(session: SparkSession, name: str, value: str) -> bool:
    """Whether the session has the setting now."""
    from pyspark.errors import AnalysisException

    # Others are taken, and have no effect.
    if name.startswith("spark.sql."):
        try:
            session.conf.set(name, value)
            return True
        except AnalysisException as error:
            if error.getCondition() != "CANNOT_MODIFY_STATIC_CONFIG":
                raise
    return session.conf.get(name, None) == value


def _first_line(error: BaseException) -> str:
    text = str(error)
    if details := re.search(r'^\s*details = "(.+)"$', text, re.MULTILINE):
        # gRPC's own form, of which this is the only line for people.
        return details[1][:300]
    return text.strip().partition("\n")[0][:300]
