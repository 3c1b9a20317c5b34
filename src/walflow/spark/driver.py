"""The driver: a JVM of ours, started quietly and ended for sure."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from walflow.errors import SparkError
from walflow.spark.class_archive import end_seconds
from walflow.spark.conf import is_local, master_addresses
from walflow.spark.java import Java

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

__all__ = ["end_driver", "exit_code", "jvm_ended_error", "start_driver"]

_STDERR = 2
# Between a connection that breaks and a process that has ended.
_DYING_SECONDS = 5
_REACH_SECONDS = 10
# What -XX:+ExitOnOutOfMemoryError ends with (see conf).
_OUT_OF_MEMORY = 3

# What must be known before there is a JVM to tell it to. Everyone on the machine can read it (ps),
# so all else, in which secrets may be, goes to the running JVM.
_LAUNCH_NAMES = (
    "spark.master",
    "spark.app.name",
    "spark.jars",
    "spark.files",
    "spark.archives",
)
_LAUNCH_ROOMS = (
    "spark.driver.",
    "spark.jars.",
    "spark.submit.",
    "spark.kerberos.",
    "spark.log.",
)


def start_driver(
    java: Java, conf: Mapping[str, str], folder: Path, debug: bool
) -> tuple[SparkSession, subprocess.Popen[bytes]]:
    """Start a JVM and the session in it; all that it prints goes to a file in the folder."""
    _check_reachable(conf["spark.master"])
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    if not debug:
        # What it logs of a JVM that has ended, with a stack for each call, it raises as well.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        # Some of it it logs as if nobody in particular did.
        logging.getLogger().addFilter(_is_not_of_py4j)
    full = SparkConf(loadDefaults=False).setAll(list(conf.items()))
    launch = SparkConf(loadDefaults=False).setAll(list(_launch_conf(conf).items()))
    printed = folder / "jvm.log"
    with (
        _environment(
            JAVA_HOME=str(java.home),
            SPARK_HOME=str(Path(sys.modules["pyspark"].__file__ or "").parent),
            PYSPARK_PYTHON=_executors_python(conf),
            PYSPARK_DRIVER_PYTHON=sys.executable,
        ),
        printed.open("wb") as output,
        warnings.catch_warnings(),
    ):
        # Spark starts its JVM with a function between fork and exec, which newer Pythons advise
        # against where threads run.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            gateway = _launched(launch, _popen_options(None if debug else output))
        except Exception as error:
            raise SparkError(
                f"the JVM did not start: {_tail(printed) or error}",
                hint="Run again with --debug to see all that it prints.",
            ) from error
        process: subprocess.Popen[bytes] = gateway.proc
        try:
            context = SparkContext(conf=full, gateway=gateway)
            context.setLogLevel("WARN" if debug else "ERROR")
            if not debug:
                _quiet_accumulators(context)
            _write_no_checksum_files(context)
            return SparkSession(context), process
        except BaseException as error:
            ended = exit_code(process, _DYING_SECONDS if _is_broken_connection(error) else 0)
            # Asked of the JVM, and so only while there is one.
            reason = _first_line(error) if ended is None else ""
            _forget(None, process)
            _end(process)
            if isinstance(error, Exception) and ended is not None:
                raise jvm_ended_error(ended) from error
            if isinstance(error, Exception):
                raise SparkError(f"the Spark session did not start: {reason}") from error
            raise


def _launched(conf: SparkConf, options: Mapping[str, Any]) -> Any:
    """The gateway to a new JVM. Made in another thread, where no Ctrl-C arrives: in the middle of
    it, nobody would know the JVM, and so nobody would end it."""
    from pyspark.java_gateway import launch_gateway

    with ThreadPoolExecutor(1, "walflow-launch") as launching:
        gateway = launching.submit(launch_gateway, conf, options)
        try:
            return gateway.result()
        except BaseException:
            if gateway.exception() is None:
                _end(gateway.result().proc)
            raise


def _quiet_accumulators(context: SparkContext) -> None:
    """PySpark's server of accumulators prints a traceback when the JVM ends before it."""
    server: Any = context._accumulatorServer
    tell = server.handle_error

    def handle_error(request: object, address: object) -> None:
        if not isinstance(sys.exception(), EOFError | OSError):
            tell(request, address)

    server.handle_error = handle_error


def _write_no_checksum_files(context: SparkContext) -> None:
    """Hadoop would write one beside each local file, and start a process (``chmod``) for each of
    the two: with it a file takes twice the time, and a commit to a lake on this machine has four.
    Those that are there are still looked at, and go with their files."""
    session: Any = context
    hadoop = session._jvm.org.apache.hadoop.fs
    hadoop.FileSystem.getLocal(session._jsc.hadoopConfiguration()).setWriteChecksum(False)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def _check_reachable(master: str) -> None:
    """Spark itself would take more than a minute to find out, and not say it."""
    reasons = []
    for host, port in master_addresses(master):
        try:
            with socket.create_connection((host, port), _REACH_SECONDS):
                return
        except OSError as error:
            reasons.append(f"{host}:{port}: {error.strerror or error}")
    if reasons:
        raise SparkError(
            f"the Spark master cannot be reached ({'; '.join(reasons)})",
            hint="Check spark.master, and that the master runs and accepts connections from here.",
        )


def _executors_python(conf: Mapping[str, str]) -> str:
    """Executors would otherwise take whatever python3 their path has.

    Elsewhere it may have another place, which only the user knows.
    """
    if is_local(conf["spark.master"]):
        return sys.executable
    named = conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    return named or sys.executable


def _launch_conf(conf: Mapping[str, str]) -> dict[str, str]:
    """What goes on the JVM's command line."""
    return {
        name: value
        for name, value in conf.items()
        if name in _LAUNCH_NAMES or name.startswith(_LAUNCH_ROOMS)
    }


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """The process's environment with these values, for as long as Spark reads them."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _popen_options(output: IO[bytes] | None) -> dict[str, Any]:
    """Without a file, all goes to stderr: what commands print on stdout is for other programs."""
    where = {"stdout": _STDERR} if output is None else {"stdout": output, "stderr": output}
    # A signal to this process's group (Ctrl-C) is for this process, which ends in order and needs
    # the JVM for that. (Who signals each process, as systemd does, ends the JVM all the same.) The
    # JVM ends by itself when its input closes, however we end.
    return {**where, "start_new_session": True}


def end_driver(session: SparkSession, process: subprocess.Popen[bytes]) -> None:
    """Stop the session and its JVM; returns when the process is gone, or was already."""
    try:
        _forget(session, process)
    finally:
        _end(process)


def jvm_ended_error(code: int) -> SparkError:
    """What to raise instead of the connection errors that a dead JVM leaves behind.

    ``code`` is the process's, or minus the number of the signal that ended it.
    """
    # A shell in between, and Java itself, add 128 to the signal's number.
    number = -code if code < 0 else code - 128
    match number:
        case signal.SIGKILL:
            return SparkError(
                "the JVM was killed (signal 9)",
                hint="A user did that, or the kernel because the machine or the container had too "
                "little memory; then its log says so (journalctl -k, or dmesg). Give it more "
                "memory, or the JVM less (--set spark.driver_memory=1g).",
            )
        case signal.SIGTERM | signal.SIGINT | signal.SIGHUP:
            return SparkError(
                f"the JVM was told to end (signal {number})",
                hint="A user or the machine's process manager did that. Start again: nothing is "
                "lost.",
            )
        case signal.SIGSEGV | signal.SIGABRT | signal.SIGBUS | signal.SIGILL | signal.SIGFPE:
            return SparkError(
                f"the JVM crashed (signal {number})",
                hint="It may have written why to hs_err_pid*.log in this folder. Start again: "
                "nothing is lost; if it happens again, try another Java.",
            )
    if code == _OUT_OF_MEMORY:
        return SparkError(
            f"the JVM had too little memory and ended (exit code {code})",
            hint="Raise spark.driver_memory (--set spark.driver_memory=4g).",
        )
    return SparkError(f"the JVM ended (exit code {code})", hint="See with --debug what it prints.")


def _forget(session: SparkSession | None, process: subprocess.Popen[bytes]) -> None:
    """Stop the context and drop what PySpark keeps of the JVM, so that another may be started."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway
    try:
        with _tolerating_a_dead(process):
            if session is not None:
                session.stop()
            elif SparkContext._active_spark_context is not None:
                SparkContext._active_spark_context.stop()
    finally:
        if gateway is not None:
            with _tolerating_a_dead(process):
                gateway.shutdown()
        SparkContext._gateway = None
        SparkContext._jvm = None
        SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None
        SparkSession._activeSession = None  # type: ignore[attr-defined,unused-ignore]


@contextmanager
def _tolerating_a_dead(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """A JVM that has ended cannot be told to stop: that would only hide why it has ended."""
    try:
        with warnings.catch_warnings():
            if exit_code(process, 0) is not None:
                # PySpark's own words for the same.
                warnings.simplefilter("ignore", RuntimeWarning)
            yield
    except Exception as error:
        if not _is_broken_connection(error) or exit_code(process, _DYING_SECONDS) is None:
            raise


def _is_broken_connection(error: BaseException) -> bool:
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

    # What Java itself has thrown came over a connection that works.
    return isinstance(error, Py4JError | OSError) and not isinstance(error, Py4JJavaError)


def exit_code(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """None if it still runs after the seconds."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """The JVM ends by itself when its input closes; if not, it is made to."""
    if process.stdin is not None:
        process.stdin.close()
    for end in (process.terminate, process.kill):
        try:
            process.wait(end_seconds())
            return
        except subprocess.TimeoutExpired:
            end()
    process.wait(end_seconds())


def _tail(file: Path, lines: int = 5) -> str:
    """The last lines that say something; where in Spark it happened does not."""
    printed = (line.strip() for line in file.read_text(errors="replace").splitlines())
    kept = [line for line in printed if line and not line.startswith(("at ", "... "))]
    return " / ".join(kept[-lines:])


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
