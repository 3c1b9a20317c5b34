"""An archive of the classes that Spark's JVM loads, in the cache folder: with it, a session starts
with half the work.

Java can write down what it made of the classes that it has loaded (class data sharing), and map
that into later JVMs. The archive is made in the background after a session that had none, by a
process of its own, and holds for one Java and one set of jars. Java itself checks that it fits, and
goes without if it does not. So it is never a reason to fail.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from walflow.spark.java import Java, cache_folder

__all__ = ["ClassArchive", "class_archive", "end_seconds", "make_archive"]

_END_SECONDS = 20.0
_END_SECONDS_MAKING = 600.0
_UNUSED_SECONDS = 30 * 86_400
_TRY_AGAIN_SECONDS = 86_400
_ENVIRONMENT = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
_USERS_OPTIONS = ("-Xshare", "SharedArchiveFile", "ArchiveClassesAtExit")
_MAKING = "WALFLOW_CLASS_ARCHIVE"
"""In the environment of a process that makes an archive: the file that is to become it."""


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """Where it is, or would be."""

    file: Path

    @property
    def options(self) -> list[str]:
        """Of a JVM that uses the archive, or makes it."""
        if (making := os.environ.get(_MAKING)) is not None:
            return [f'"-XX:ArchiveClassesAtExit={making}"']
        if not self.file.is_file():
            return []
        # It shows that it is in use (see _remove_unused).
        with contextlib.suppress(OSError):
            os.utime(self.file)
        return [f'"-XX:SharedArchiveFile={self.file}"']

    def make_in_background(self, arguments: Sequence[str]) -> None:
        """If it is not there, and was not tried in vain lately. Python, run with these arguments,
        must start such a session inside ``make_archive``."""
        if _MAKING in os.environ or self.file.is_file() or self._failed_lately():
            return
        with contextlib.suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            # Nobody waits for it: the shell ends at once, and it goes on when this process ends.
            subprocess.run(
                ["/bin/sh", "-c", '"$@" >"$0" 2>&1 &', self._log, sys.executable, *arguments],
                env=os.environ | {_MAKING: str(self.file)},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                check=False,
            )

    def remove(self) -> None:
        """It will be made again."""
        with contextlib.suppress(OSError):
            self.file.unlink(missing_ok=True)

    def _failed_lately(self) -> bool:
        try:
            return time.time() - self._log.stat().st_mtime < _TRY_AGAIN_SECONDS
        except OSError:
            return False

    @property
    def _log(self) -> Path:
        """What was printed when it was made; it stays if that failed."""
        return self.file.with_suffix(".log")


def class_archive(
    java: Java, jars: Iterable[Path], driver_options: str = ""
) -> ClassArchive | None:
    """The one for this Java and these jars, beside Spark's own. None: the user has told Java what
    to share."""
    options = [driver_options, *(os.environ.get(name, "") for name in _ENVIRONMENT)]
    if any(option in text for option in _USERS_OPTIONS for text in options):
        return None
    import pyspark

    spark_jars = sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))
    digest = hashlib.sha256()
    for file in (java.home / "bin" / "java", java.home / "release", *spark_jars, *jars):
        digest.update(f"{file} {_state(file)}\n".encode())
    return ClassArchive(_folder() / f"{digest.hexdigest()[:16]}.jsa")


def _state(file: Path) -> str:
    try:
        stat = file.stat()
    except OSError:
        return ""
    return f"{stat.st_size} {stat.st_mtime_ns}"


def _folder() -> Path:
    return cache_folder() / "classes"


def end_seconds() -> float:
    """How long a JVM may take to end: one that makes an archive does so then."""
    return _END_SECONDS_MAKING if _MAKING in os.environ else _END_SECONDS


def make_archive(run: Callable[[], object]) -> None:
    """In a process that ``make_in_background`` has started: ``run`` starts a session, lets it do
    what sessions do, and ends it. Does nothing if another process is making one."""
    archive = ClassArchive(Path(os.environ[_MAKING]))
    os.nice(19)
    with (archive.file.parent / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        _remove_unused(archive.file.parent)
        # Whole or not at all: others may start meanwhile.
        partial = archive.file.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        os.environ[_MAKING] = str(partial)
        run()
        partial.replace(archive.file)
        archive._log.unlink(missing_ok=True)


def _remove_unused(folder: Path) -> None:
    """Archives for other jars, and what is left of attempts, when nobody has used them for long."""
    for file in folder.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - file.stat().st_mtime > _UNUSED_SECONDS:
                file.unlink()
