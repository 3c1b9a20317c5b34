"""The archive of classes that JVMs share: made in the background, used, and never a reason to
fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.capturing import wait_for
from tests.pipeline.running import WAIT
from walflow.spark.class_archive import class_archive
from walflow.spark.java import QUICK_START, Java, find_java

SESSION = """
from pathlib import Path
from walflow.config import SparkSettings
from walflow.destinations.class_archive import archived_by
from walflow.spark.session import make_session, stop_session

session = make_session(SparkSettings(driver_memory="512m"), archived_by=archived_by())
pid = session.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
mapped = [line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
print(session.range(10).count(), *{Path(file).name for file in mapped if file.endswith(".jsa")})
stop_session(session)
"""


@pytest.fixture
def nothing_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As users have it: no word about shared classes, and a cache folder."""
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", QUICK_START)
    monkeypatch.setenv("WALFLOW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "classes"


def in_a_session(folder: Path) -> set[str]:
    """What ten rows count to, and the archives that the JVM has mapped."""
    ran = subprocess.run(
        [sys.executable, "-c", SESSION],
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
        cwd=folder,  # where Java tells of a crash
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    return set(ran.stdout.split()) - {"classes.jsa", "classes_nocoops.jsa"}


@pytest.mark.spark
def test_sessions_share_the_classes_of_the_first_one(nothing_said: Path, tmp_path: Path) -> None:
    assert in_a_session(tmp_path) == {"10"}
    wait_for(lambda: len(list(nothing_said.glob("*.jsa"))) == 1, WAIT, "an archive")
    (archive,) = nothing_said.glob("*.jsa")
    assert in_a_session(tmp_path) == {"10", archive.name}

    # Whatever becomes of it, sessions start.
    archive.chmod(0o600)
    os.truncate(archive, 5000)
    assert in_a_session(tmp_path) == {"10"}
    wait_for(lambda: archive.stat().st_size > 5000 if archive.exists() else False, WAIT, "another")
    assert not list(nothing_said.glob("*.partial"))


def test_it_is_for_one_java_and_one_set_of_jars(nothing_said: Path, tmp_path: Path) -> None:
    java, jar = find_java(), tmp_path / "some.jar"
    jar.write_bytes(b"some")
    without, first = class_archive(java, []), class_archive(java, [jar])
    jar.write_bytes(b"other")
    second, elsewhere = class_archive(java, [jar]), class_archive(Java(tmp_path, 21), [jar])
    found = {one.file for one in (without, first, second, elsewhere) if one is not None}
    assert len(found) == 4
    assert {file.parent for file in found} == {nothing_said}


@pytest.mark.parametrize("option", ["-Xshare:off", "-XX:SharedArchiveFile=own.jsa"])
def test_who_says_what_is_shared_is_left_alone(
    nothing_said: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    assert class_archive(find_java(), [], f"-Da=b {option}") is None
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", option)
    assert class_archive(find_java(), []) is None


def test_what_failed_is_not_tried_again_the_same_day(nothing_said: Path) -> None:
    archive = class_archive(find_java(), [])
    assert archive is not None
    log = archive.file.with_suffix(".log")
    attempts = ("-c", "print('no archive')")
    archive.make_in_background(attempts)
    wait_for(lambda: log.is_file() and log.read_text() == "no archive\n", WAIT, "an attempt")
    log.write_text("what was said then\n")
    archive.make_in_background(attempts)
    assert log.read_text() == "what was said then\n"
    os.utime(log, (0, 0))
    archive.make_in_background(attempts)
    wait_for(lambda: log.read_text() == "no archive\n", WAIT, "another attempt")


def test_a_cache_folder_that_cannot_be_written(
    nothing_said: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("WALFLOW_CACHE", str(tmp_path / "file"))
    archive = class_archive(find_java(), [])
    assert archive is not None
    archive.make_in_background(("-c", "print('no archive')"))
    assert archive.options == []
