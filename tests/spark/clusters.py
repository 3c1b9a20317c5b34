"""Spark outside the test's process: a standalone cluster, and a Spark Connect server.

Both listen on the loopback address only, at ports that they choose, and end with their owner.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import pyspark
from pydantic import SecretStr

from walflow.config import SparkSettings
from walflow.destinations import delta, iceberg
from walflow.spark.jars import DELTA, ICEBERG, find_jars
from walflow.spark.java import QUICK_START, find_java

_START_SECONDS = 240
_STOP_SECONDS = 60
_HOME = Path(pyspark.__file__).parent

# The server runs for as long as the shell's input is open, which ends with the owner even if that
# is killed. In the background its own input is empty.
_UNTIL_INPUT_ENDS = '"$@" & read -r _; kill $!; wait $!'


class _Server:
    """One process of Spark's; what it prints goes to a file."""

    def __init__(self, command: Sequence[str], log: Path, **environment: str) -> None:
        self._log = log
        kept = {name: value for name, value in os.environ.items() if "SPARK" not in name}
        with log.open("wb") as output:
            self._shell = subprocess.Popen(
                [
                    "sh",
                    "-c",
                    _UNTIL_INPUT_ENDS,
                    "sh",
                    str(_HOME / "bin" / command[0]),
                    *command[1:],
                ],
                env={
                    **kept,
                    "JAVA_HOME": str(find_java().home),
                    "SPARK_HOME": str(_HOME),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_LOCAL_DIRS": str(log.parent / "scratch"),
                    "PYSPARK_PYTHON": sys.executable,
                    **environment,
                },
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def wait_for(self, line: str, count: int = 1) -> str:
        """Wait until it has printed so many lines with the pattern; the last one's first group."""
        deadline = time.monotonic() + _START_SECONDS
        while len(found := re.findall(line, self._log.read_text(errors="replace"))) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {line!r} in:\n{self._log.read_text()[-3000:]}")
            time.sleep(0.1)
        return str(found[-1])

    def stop(self) -> None:
        """End it and all that it has started."""
        processes = psutil.Process(self._shell.pid).children(recursive=True)
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        _, alive = psutil.wait_procs(processes, _STOP_SECONDS)
        for process in alive:
            process.kill()
        self._shell.wait(_STOP_SECONDS)


class _Servers:
    """Servers that are stopped together, also when one of them does not start."""

    def __init__(self, folder: Path) -> None:
        """``folder`` takes logs and scratch files."""
        self.folder = folder
        self._servers: list[_Server] = []

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        while self._servers:
            self._servers.pop().stop()

    def _run(self, name: str, *command: str, **environment: str) -> _Server:
        server = _Server(command, self.folder / f"{name}.log", **environment)
        self._servers.append(server)
        return server


class StandaloneCluster(_Servers):
    """A master, and two workers of one core each."""

    master: str

    def start(self) -> None:
        options = {
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_START} -XX:+UseSerialGC",
        }
        here = ("--host", "127.0.0.1", "--webui-port", "0")
        deploy = "org.apache.spark.deploy"
        master = self._run(
            "master", "spark-class", f"{deploy}.master.Master", *here, "--port", "0", **options
        )
        self.master = master.wait_for(r"Starting Spark master at (spark://\S+)")
        for name in ("one", "two"):
            self._run(
                name,
                *("spark-class", f"{deploy}.worker.Worker", *here),
                *("--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / name)),
                self.master,
                **options,
            )
        master.wait_for("Registering (worker)", count=2)

    @property
    def settings(self) -> SparkSettings:
        """Of a session with an executor on each worker."""
        return SparkSettings(
            master=self.master,
            driver_memory="512m",
            conf={
                "spark.executor.memory": "512m",
                "spark.sql.shuffle.partitions": "2",
                "spark.executor.extraJavaOptions": QUICK_START,
                "spark.driver.extraJavaOptions": QUICK_START,
            },
        )


class ConnectServer(_Servers):
    """A server with two local cores and all that Iceberg and Delta need."""

    remote: str

    def start(self) -> None:
        conf = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.extraJavaOptions": QUICK_START,
            "spark.python.unix.domain.socket.enabled": "true",
            "spark.sql.extensions": f"{iceberg.EXTENSIONS},{delta.EXTENSIONS}",
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.ui.enabled": "false",
        }
        server = self._run(
            "connect",
            *("spark-submit", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
            *("--master", "local[2]", "--driver-memory", "1g"),
            *("--jars", ",".join(map(str, find_jars([ICEBERG, DELTA])))),
            *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
            "spark-internal",
        )
        address = server.wait_for(r"Spark Connect server started at: (\S+)")
        self.remote = f"sc://{address}"

    @property
    def settings(self) -> SparkSettings:
        return SparkSettings(
            remote=SecretStr(self.remote), conf={"spark.sql.shuffle.partitions": "2"}
        )


def written(settings: SparkSettings) -> dict[str, Any]:
    """As a file has them, with what is never shown."""
    found = settings.model_dump(mode="json", exclude_unset=True)
    if settings.remote is not None:
        found["remote"] = settings.remote.get_secret_value()
    return found
