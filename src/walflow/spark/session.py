"""The Spark session of this process: made quietly, warmed up, and ended for sure.

It is of one of three kinds: all of Spark in a JVM of ours (``local[*]``), the driver in a JVM of
ours and the executors in a cluster, or a client of a Spark Connect server. What works in one of
them only stays inside this room.

Nothing of Spark is imported before a session is made, so that commands which need none start at
once.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

from walflow.config import SparkSettings
from walflow.errors import ConfigError, SparkError
from walflow.spark.class_archive import ClassArchive, class_archive
from walflow.spark.conf import driver_conf, is_local
from walflow.spark.connect import (
    clone_remote,
    connect_remote,
    disconnect,
    is_remote_session,
    release_remote,
)
from walflow.spark.driver import end_driver, exit_code, jvm_ended_error, start_driver
from walflow.spark.executors import check_executors
from walflow.spark.jars import Package, find_jars
from walflow.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "check_given",
    "child_session",
    "cores",
    "end_child_session",
    "jvm_ended",
    "jvm_ended_error",
    "make_session",
    "stop_session",
]

# Settings of a driver, which a client of a Spark Connect server does not have.
_OF_A_DRIVER = ("master", "driver_memory", "ivy_settings")

_lock = threading.Lock()
_running: _Driver | _Client | None = None
_checked: WeakSet[object] = WeakSet()
"""Sessions that are not ours, or their contexts, in which Python has run our code."""


@dataclass(frozen=True, slots=True)
class _Driver:
    """A JVM of ours, and the folder that it may use."""

    process: subprocess.Popen[bytes]
    folder: Path
    archive: ClassArchive | None
    archived_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Client:
    """Nothing here needs ending but the session itself."""


def make_session(
    settings: SparkSettings,
    packages: Iterable[Package] = (),
    extra_conf: Mapping[str, str] | None = None,
    *,
    debug: bool = False,
    archived_by: Sequence[str] = (),
) -> SparkSession:
    """Start the one session of this process, in a JVM of ours or on a Spark Connect server.

    ``extra_conf`` is what a destination needs; the user's ``settings.conf`` wins over it, and it
    over our defaults. Unless ``debug``, nothing that the JVM prints reaches the terminal.

    ``archived_by``: what Python is run with to archive the classes of such a session after the
    first one (see class_archive); without it, only an archive that is there is used.

    Executors outside this process are tried at once: SparkError says what they lack.
    """
    global _running
    _check_kind(settings)
    with _lock:
        if _running is not None:
            raise SparkError(
                "this process has a Spark session already",
                hint="Stop it with stop_session first, or share it between pipelines.",
            )
        if settings.remote is None:
            session, _running = _make_driver(
                settings, packages, extra_conf or {}, debug, archived_by
            )
        else:
            session = connect_remote(
                settings.remote.get_secret_value(),
                settings.conf,
                packages,
                extra_conf or {},
                debug,
            )
            _running = _Client()
        # For a process that ends without having stopped it.
        atexit.register(stop_session, session)
    try:
        if settings.remote is not None or not is_local(settings.master):
            check_executors(session)
    except BaseException:
        stop_session(session)
        raise
    return session


def _check_kind(settings: SparkSettings) -> None:
    if settings.remote is None:
        return
    if both := [name for name in _OF_A_DRIVER if name in settings.model_fields_set]:
        raise ConfigError(
            f"spark.{both[0]} and spark.remote contradict each other: a Spark Connect server has "
            "a driver of its own",
            hint=f"Leave out spark.remote, or {' and '.join(f'spark.{name}' for name in both)}.",
        )


def _make_driver(
    settings: SparkSettings,
    packages: Iterable[Package],
    extra: Mapping[str, str],
    debug: bool,
    archived_by: Sequence[str],
) -> tuple[SparkSession, _Driver]:
    java = find_java()
    jars = find_jars(packages, settings.ivy_settings)
    archive = class_archive(java, jars, settings.conf.get("spark.driver.extraJavaOptions", ""))
    folder = Path(tempfile.mkdtemp(prefix="walflow-spark-"))

    def start(options: Sequence[str]) -> tuple[SparkSession, subprocess.Popen[bytes]]:
        return start_driver(
            java, driver_conf(settings, java, jars, extra, folder, debug, options), folder, debug
        )

    try:
        if archive is not None and (options := archive.options):
            try:
                session, process = start(options)
            except SparkError:
                # Java looks whether an archive fits, but a damaged one it may not survive.
                archive.remove()
                session, process = start([])
        else:
            session, process = start([])
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return session, _Driver(process, folder, archive, tuple(archived_by))


def check_given(session: SparkSession) -> None:
    """Whether Python runs our code in a session that somebody else has made; SparkError says what
    it lacks. Costs a task, once a session.

    Without a word about it, Spark runs whatever ``python3`` the path has. Where this process's
    JVM is the only executor, it gets this process's Python, as in sessions of ours.
    """
    remote = is_remote_session(session)
    where: object = session if remote else session.sparkContext
    with _lock:
        if where in _checked:
            return
    local = not remote and is_local(session.sparkContext.master or "")
    if local and "PYSPARK_PYTHON" not in os.environ:
        context = session.sparkContext
        context.pythonExec = context.getConf().get("spark.pyspark.python") or sys.executable
    check_executors(session)
    with _lock:
        _checked.add(where)


def stop_session(session: SparkSession) -> None:
    """Stop the session. A JVM of ours ends with it, and its process is gone on return; a Spark
    Connect server goes on. Harmless when repeated, and when the other side has ended by itself.
    """
    global _running
    with _lock:
        if _running is None:
            return
        running, _running = _running, None
        atexit.unregister(stop_session)
        if isinstance(running, _Client):
            disconnect(session)
            return
        try:
            end_driver(session, running.process)
        finally:
            shutil.rmtree(running.folder, ignore_errors=True)
        if running.archive is not None and running.archived_by:
            running.archive.make_in_background(running.archived_by)


def child_session(session: SparkSession) -> SparkSession:
    """Another session on the same Spark, with settings and views of its own.

    It starts with the settings that the session was made with. Keep it for as long as frames of
    it are in use, then give it to ``end_child_session``.
    """
    return clone_remote(session) if is_remote_session(session) else session.newSession()


def end_child_session(session: SparkSession) -> None:
    """Let go of a child session, also when its server is gone; its parent goes on.

    Not by ``stop``, which outside Spark Connect ends Spark. There it goes with its object; a
    Spark Connect server would keep it for an hour.
    """
    if is_remote_session(session):
        release_remote(session)


def cores(session: SparkSession) -> int:
    """How many tasks run at once, as far as Spark knows now: executors may come and go."""
    if not is_remote_session(session):
        return max(1, session.sparkContext.defaultParallelism)
    # Planned only. Spark cuts a range into as many pieces as it would run at once, and says so;
    # there is no other way to ask a Spark Connect server.
    plan = session.sql("EXPLAIN SELECT * FROM range(1)").collect()[0][0]
    splits = re.search(r"splits=(\d+)", plan)
    assert splits is not None, plan
    return max(1, int(splits[1]))


def jvm_ended(seconds: float = 0) -> int | None:
    """The exit code of the session's JVM if it has ended by itself; None while it runs, or where
    there is none of ours. Waits up to ``seconds`` for one that is about to end.
    """
    running = _running
    return exit_code(running.process, seconds) if isinstance(running, _Driver) else None
