"""The Spark session: made quietly, warmed up, and ended for sure.

Nothing of Spark is imported before a session is made, so that commands which need none start at
once.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from walflow.config import SparkSettings
from walflow.errors import SparkError
from walflow.spark.jars import Package, find_jars
from walflow.spark.java import Java, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["cores", "jvm_ended", "jvm_ended_error", "make_session", "stop_session", "warm_up"]

_STOP_SECONDS = 20
_JAVA_TEMPORARY = "/tmp"  # noqa: S108 - Java's own choice, whatever the environment says
_STDERR = 2
# Between a connection that breaks and a process that has ended.
_DYING_SECONDS = 5

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

_DEFAULTS: Mapping[str, str] = {
    "spark.app.name": "walflow",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # What Spark remembers of finished work for pages that nobody opens.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "10",
    "spark.sql.session.timeZone": "UTC",
    # Postgres columns may differ by case alone.
    "spark.sql.caseSensitive": "true",
    # Proleptic Gregorian dates throughout, as Postgres and Arrow have them.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A round lists many small files; a Spark job for the listing alone costs more than it saves.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    # Bloom filters on the scan of the table that is merged into: half the time of a MERGE. They
    # are made only for joins that are not broadcast.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.optimizer.runtime.bloomFilter.enabled": "true",
    "spark.sql.optimizer.runtime.bloomFilter.applicationSideScanSizeThreshold": "0",
    "spark.sql.optimizer.runtime.bloomFilter.creationSideThreshold": "100MB",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.worker.reuse": "true",
    # An executor that dies in Python should say where.
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

_LOG4J = """\
rootLogger.level = {level}
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{ISO8601}} %p %c{{1}}: %m%n%ex
"""

_lock = threading.Lock()
_started: _Started | None = None


class _Started:
    """What belongs to the running JVM: its process, its folder, and what it has printed."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process = process
        self.folder = folder


def make_session(
    settings: SparkSettings,
    packages: Iterable[Package] = (),
    extra_conf: Mapping[str, str] | None = None,
    *,
    debug: bool = False,
) -> SparkSession:
    """Start a JVM and the one session of this process.

    ``extra_conf`` is what a destination needs; the user's ``settings.conf`` wins over it, and it
    over our defaults. Unless ``debug``, nothing that the JVM prints reaches the terminal.
    """
    global _started
    with _lock:
        if _started is not None:
            raise SparkError(
                "this process has a Spark session already",
                hint="Stop it with stop_session first, or share it between pipelines.",
            )
        java = find_java()
        jars = find_jars(packages, settings.ivy_settings)
        folder = Path(tempfile.mkdtemp(prefix="walflow-spark-"))
        try:
            conf = _conf(settings, java, jars, extra_conf or {}, folder, debug)
            session, process = _start(java, conf, folder, debug)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        _started = _Started(process, folder)
        # For a process that ends without having stopped it.
        atexit.register(stop_session, session)
        return session


def warm_up(session: SparkSession) -> None:
    """Run small queries of the kinds that rounds need, so that the first real one is quick.

    Meant for a thread of its own while the copy runs. Touches no table; a destination warms its
    own writes up.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    rows = session.range(100).select("id", (sf.col("id") % 7).alias("key"))
    last = sf.row_number().over(Window.partitionBy("key").orderBy(sf.desc("id")))
    newest = rows.withColumn("n", last).where("n = 1").persist()
    newest.count()
    rows.join(newest, "key", "left").groupBy("n").count().collect()
    newest.unpersist()


def cores(session: SparkSession) -> int:
    """How many tasks run at once, as far as Spark says; 8 where it does not (Spark Connect)."""
    try:
        return max(1, session.sparkContext.defaultParallelism)
    except AttributeError:
        return 8


def jvm_ended(seconds: float = 0) -> int | None:
    """The exit code of the session's JVM if it has ended by itself; None while it runs, or where
    there is none of ours. Waits up to ``seconds`` for one that is about to end.
    """
    started = _started
    return None if started is None else _exit_code(started.process, seconds)


def jvm_ended_error(exit_code: int) -> SparkError:
    """What to raise instead of the connection errors that a dead JVM leaves behind."""
    return SparkError(
        f"the JVM ended (exit code {exit_code})",
        hint="It probably had too little memory: raise spark.driver_memory"
        " (--set spark.driver_memory=4g), or see with --debug what it prints.",
    )


def stop_session(session: SparkSession) -> None:
    """Stop Spark and end the JVM; returns when its process is gone. Harmless when repeated, and
    when the JVM has ended by itself."""
    global _started
    with _lock:
        if _started is None:
            return
        started, _started = _started, None
        atexit.unregister(stop_session)
        try:
            _forget(session, started.process)
        finally:
            _end(started.process)
            shutil.rmtree(started.folder, ignore_errors=True)


def _conf(
    settings: SparkSettings,
    java: Java,
    jars: Iterable[Path],
    extra: Mapping[str, str],
    folder: Path,
    debug: bool,
) -> dict[str, str]:
    log4j = folder / "log4j2.properties"
    log4j.write_text(_LOG4J.format(level="warn" if debug else "error"))
    options = [
        f"-Dlog4j2.configurationFile={log4j.as_uri()}",
        "-Duser.timezone=UTC",
        "-Dfile.encoding=UTF-8",
        # On two cores Java would choose the serial collector.
        "-XX:+UseG1GC",
        "-XX:+ExitOnOutOfMemoryError",
    ]
    if not os.access(_JAVA_TEMPORARY, os.W_OK):
        # Python has found a folder that this user may write. Not always, because Spark puts
        # sockets there, whose paths must be short.
        options.append(f'"-Djava.io.tmpdir={folder}"')
    if java.version >= 22:
        # Netty and Hadoop load native code, which newer Javas warn about.
        options.append("--enable-native-access=ALL-UNNAMED")
    if java.version >= 18:
        # Hadoop asks who the user is in a way that newer Javas refuse without it.
        options.append("-Djava.security.manager=allow")
    conf = {
        **_DEFAULTS,
        "spark.master": settings.master,
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": " ".join(options),
        "spark.sql.shuffle.partitions": str(_shuffle_partitions(settings.master)),
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **extra,
    }
    # What the user adds to the JVM's options must not cost us ours.
    user = dict(settings.conf)
    if more := user.pop("spark.driver.extraJavaOptions", None):
        conf["spark.driver.extraJavaOptions"] += f" {more}"
    conf |= user
    if files := [str(jar) for jar in jars]:
        conf["spark.jars"] = ",".join([*files, *filter(None, [conf.get("spark.jars", "")])])
    return conf


def _shuffle_partitions(master: str) -> int:
    """As many as local cores, but few: rounds are small, and each partition costs a task."""
    if not master.startswith("local"):
        return 8
    return max(2, min(8, os.cpu_count() or 2))


def _start(
    java: Java, conf: Mapping[str, str], folder: Path, debug: bool
) -> tuple[SparkSession, subprocess.Popen[bytes]]:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    full = SparkConf(loadDefaults=False).setAll(list(conf.items()))
    launch = SparkConf(loadDefaults=False).setAll(list(_launch_conf(conf).items()))
    printed = folder / "jvm.log"
    with (
        _environment(
            JAVA_HOME=str(java.home),
            SPARK_HOME=str(Path(sys.modules["pyspark"].__file__ or "").parent),
            # Workers would otherwise take whatever python3 the path has.
            PYSPARK_PYTHON=sys.executable,
            PYSPARK_DRIVER_PYTHON=sys.executable,
        ),
        printed.open("wb") as output,
        warnings.catch_warnings(),
    ):
        # Spark starts its JVM with a function between fork and exec, which newer Pythons advise
        # against where threads run.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            gateway = launch_gateway(  # type: ignore[no-untyped-call]
                launch, _output_to(None if debug else output)
            )
        except Exception as error:
            raise SparkError(
                f"the JVM did not start: {_tail(printed) or error}",
                hint="Run again with --debug to see all that it prints.",
            ) from error
        process: subprocess.Popen[bytes] = gateway.proc
        try:
            context = SparkContext(conf=full, gateway=gateway)
            context.setLogLevel("WARN" if debug else "ERROR")
            return SparkSession(context), process
        except BaseException as error:
            ended = _exit_code(process, _DYING_SECONDS if _is_broken_connection(error) else 0)
            _forget(None, process)
            _end(process)
            if isinstance(error, Exception) and ended is not None:
                raise jvm_ended_error(ended) from error
            if isinstance(error, Exception):
                raise SparkError(
                    f"the Spark session did not start: {_first_line(error)}"
                ) from error
            raise


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


def _output_to(output: IO[bytes] | None) -> dict[str, Any]:
    """Without a file, all goes to stderr: what commands print on stdout is for other programs."""
    if output is None:
        return {"stdout": _STDERR}
    return {"stdout": output, "stderr": output}


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
            if _exit_code(process, 0) is not None:
                # PySpark's own words for the same.
                warnings.simplefilter("ignore", RuntimeWarning)
            yield
    except Exception as error:
        if not _is_broken_connection(error) or _exit_code(process, _DYING_SECONDS) is None:
            raise


def _is_broken_connection(error: BaseException) -> bool:
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

    # What Java itself has thrown came over a connection that works.
    return isinstance(error, Py4JError | OSError) and not isinstance(error, Py4JJavaError)


def _exit_code(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """None if it still runs after the seconds."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """The JVM ends by itself when its input closes; if not, it is made to."""
    if process.stdin is not None:
        process.stdin.close()
    for signal in (process.terminate, process.kill):
        try:
            process.wait(_STOP_SECONDS)
            return
        except subprocess.TimeoutExpired:
            signal()
    process.wait(_STOP_SECONDS)


def _tail(file: Path, lines: int = 5) -> str:
    """The last lines that say something; where in Spark it happened does not."""
    printed = (line.strip() for line in file.read_text(errors="replace").splitlines())
    kept = [line for line in printed if line and not line.startswith(("at ", "... "))]
    return " / ".join(kept[-lines:])


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
