"""The jars that destinations need, fetched once by Spark's own resolver into our cache.

Spark resolves packages anew at each start, which costs seconds and wants a network. So they are
resolved once, and later sessions get the files as static jars.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import structlog

from walflow.errors import JarsMissing
from walflow.paths import is_there
from walflow.spark.java import cache_folder, find_java

__all__ = [
    "DELTA",
    "ICEBERG",
    "Package",
    "find_jars",
    "jar_folder",
    "missing_jars",
    "telling_of_jars",
]

_RESOLVE_SECONDS = 600
_TELL_SECONDS = 5.0
_SCRATCH = ".fetch-"

_logger = structlog.get_logger(__name__)
_tell: ContextVar[Callable[[str], object] | None] = ContextVar("telling_of_jars", default=None)


@dataclass(frozen=True, slots=True)
class Package:
    """A Maven coordinate, the jars of it that Spark lacks, and what must not come along."""

    coordinate: str
    jars: tuple[str, ...]
    excludes: tuple[str, ...] = ()


ICEBERG = Package(
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    ("iceberg-spark-runtime-4.1_2.13-1.12.0.jar",),
)
DELTA = Package(
    "io.delta:delta-spark_4.1_2.13:4.4.0",
    ("delta-spark_4.1_2.13-4.4.0.jar", "delta-storage-4.4.0.jar"),
    # All else that Delta names is part of Spark already, or serves catalogs that we do not use.
    (
        "org.*:*",
        "com.*:*",
        "javax.*:*",
        "commons-*:*",
        "io.airlift:*",
        "io.unitycatalog:*",
        "io.delta:delta-kernel-*",
    ),
)


@contextmanager
def telling_of_jars(tell: Callable[[str], object]) -> Iterator[None]:
    """While this thread fetches jars inside the block, ``tell`` hears of it every few seconds: for
    those who show no log lines."""
    token = _tell.set(tell)
    try:
        yield
    finally:
        _tell.reset(token)


def jar_folder() -> Path:
    return cache_folder() / "jars"


def missing_jars(packages: Iterable[Package]) -> list[str]:
    """The names of those that ``find_jars`` would fetch."""
    names = [name for package in packages for name in package.jars]
    return [name for name in names if not is_there(jar_folder() / name)]


def find_jars(packages: Iterable[Package], ivy_settings: Path | None = None) -> list[Path]:
    """The packages' jar files, fetched where missing.

    Safe to call from several processes at once: one fetches, the others wait for it.
    ``ivy_settings`` is an Ivy settings file for those who have a mirror of their own.
    """
    folder = jar_folder()
    jars: list[Path] = []
    for package in packages:
        wanted = [folder / name for name in package.jars]
        if not _all_there(wanted):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                with _locked(folder / ".lock"):
                    if not _all_there(wanted):
                        _fetch(package, folder, ivy_settings)
            except OSError as error:
                raise JarsMissing(
                    f"{package.coordinate} could not be fetched into {folder}: "
                    f"{error.strerror or error}",
                    hint="Give this user a folder to keep jars in: name one with WALFLOW_CACHE, "
                    f"or give it the right to write to {folder}.",
                ) from error
        jars += wanted
    return jars


def _all_there(files: Iterable[Path]) -> bool:
    return all(is_there(file) for file in files)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _fetch(package: Package, folder: Path, ivy_settings: Path | None) -> None:
    """Let Spark resolve the package beside the folder, then move the jars in, whole or not.

    Call with the lock held.
    """
    # Nobody else fetches now: these are of processes that were killed.
    for stale in folder.glob(f"{_SCRATCH}*"):
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=folder) as scratch:
        ivy = Path(scratch)
        log = _resolve(package, ivy, ivy_settings)
        group = package.coordinate.partition(":")[0]
        for name in package.jars:
            # Ivy puts the group in front of the name.
            fetched = ivy / "jars" / f"{group}_{name}"
            if not fetched.is_file():
                raise JarsMissing(
                    f"{package.coordinate} could not be fetched: {_reason(log)}",
                    hint=_hint(package, folder),
                )
            fetched.replace(folder / name)


def _resolve(package: Package, ivy: Path, ivy_settings: Path | None) -> str:
    """Submit an empty program that asks for the package; Spark fetches before it runs it."""
    import pyspark

    program = ivy / "nothing.py"
    program.touch()
    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        *("--master", "local[1]"),
        *("--packages", package.coordinate),
        *("--conf", f"spark.jars.ivy={ivy}"),
    ]
    if package.excludes:
        command += ["--exclude-packages", ",".join(package.excludes)]
    if ivy_settings is not None:
        command += ["--conf", f"spark.jars.ivySettings={ivy_settings}"]
    environment = os.environ | {
        "JAVA_HOME": str(find_java().home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
    }
    # Spark would hand these to the program's session and so to the resolver.
    environment.pop("PYSPARK_SUBMIT_ARGS", None)
    begun = time.monotonic()
    with subprocess.Popen(
        [*command, str(program)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as running:
        try:
            while (seconds := time.monotonic() - begun) < _RESOLVE_SECONDS:
                megabytes = _bytes_in(ivy) / 1e6
                _logger.info(
                    "fetching jars",
                    package=package.coordinate,
                    megabytes=round(megabytes, 1),
                    seconds=round(seconds),
                )
                if (tell := _tell.get()) is not None:
                    tell(f"fetching jars: {megabytes:.0f} MB")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return running.communicate(timeout=_TELL_SECONDS)[0]
            return f"no end after {_RESOLVE_SECONDS} s"
        finally:
            running.kill()
            shutil.rmtree(ivy / "cache", ignore_errors=True)


def _bytes_in(folder: Path) -> int:
    size = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):  # it may be moved meanwhile
            size += file.stat().st_size
    return size


def _reason(log: str) -> str:
    """The resolver's last word: its errors, without the pages of attempts around them."""
    lines = [line.strip() for line in log.splitlines()]
    for sign in ("unresolved dependency", "not found", "Exception", "ERROR"):
        if hits := [line for line in lines if sign in line and "artifacts" not in line]:
            return hits[-1][:300]
    return next((line[:300] for line in reversed(lines) if line), "the resolver said nothing")


def _hint(package: Package, folder: Path) -> str:
    return (
        f"Connect to a network, name a mirror (spark.ivy_settings: an Ivy settings file), or put "
        f"{' and '.join(package.jars)} into {folder}."
    )
