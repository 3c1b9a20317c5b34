"""Jars: fetched once, by one, or else said what is missing where."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import Room, new_room
from tests.conftest import Database
from walflow.errors import JarsMissing
from walflow.spark.jars import DELTA, ICEBERG, Package, find_jars, jar_folder

# A repository of our own: the tests must not need a network.
IVY_SETTINGS = """
<ivysettings>
  <settings defaultResolver="local"/>
  <resolvers>
    <filesystem name="local" m2compatible="true">
      <artifact pattern="{folder}/[organisation]/[module]/[revision]/[artifact]-[revision].[ext]"/>
      <ivy pattern="{folder}/[organisation]/[module]/[revision]/[module]-[revision].pom"/>
    </filesystem>
  </resolvers>
</ivysettings>
"""
POM = """
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>org.example</groupId><artifactId>thing</artifactId><version>1.0</version>
</project>
"""
THING = Package("org.example:thing:1.0", ("thing-1.0.jar",))


@pytest.fixture
def room() -> Iterator[Room]:
    with new_room() as made:
        yield made


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WALFLOW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "jars"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Ivy settings for a folder that has the thing."""
    folder = tmp_path / "repository"
    (folder / "org/example/thing/1.0").mkdir(parents=True)
    (folder / "org/example/thing/1.0/thing-1.0.pom").write_text(POM)
    (folder / "org/example/thing/1.0/thing-1.0.jar").write_bytes(b"jar")
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(IVY_SETTINGS.format(folder=folder))
    return settings


def test_jars_that_are_there_are_taken(cache: Path) -> None:
    cache.mkdir(parents=True)
    for name in (*ICEBERG.jars, *DELTA.jars):
        (cache / name).touch()
    assert find_jars([ICEBERG]) == [cache / name for name in ICEBERG.jars]
    assert find_jars([ICEBERG, DELTA]) == [cache / n for n in (*ICEBERG.jars, *DELTA.jars)]


@pytest.mark.spark
def test_two_processes_fetch_at_once(cache: Path, repository: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from walflow.spark.jars import *;"
        f"print(*find_jars([Package({THING.coordinate!r}, {THING.jars!r})], Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", program, str(repository)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told = []
    for process in running:
        output, _ = process.communicate(timeout=400)
        assert process.returncode == 0
        *lines, last = output.splitlines()
        assert last == str(cache / "thing-1.0.jar")
        told.append(lines)
    # The one that fetches says so, and the other one waits.
    (lines,) = filter(None, told)
    assert "fetching jars" in lines[0]
    assert THING.coordinate in lines[0]
    assert (cache / "thing-1.0.jar").read_bytes() == b"jar"
    assert sorted(file.name for file in cache.iterdir()) == [".lock", "thing-1.0.jar"]


@pytest.mark.spark
def test_missing_jars_say_what_to_put_where(cache: Path, repository: Path) -> None:
    (cache / ".fetch-of-a-killed-process" / "jars").mkdir(parents=True)
    with pytest.raises(JarsMissing, match=r"org\.example:other:1\.0 could not") as missing:
        find_jars([Package("org.example:other:1.0", ("other-1.0.jar",))], repository)
    assert f"put other-1.0.jar into {jar_folder()}" in missing.value.hint
    assert [file.name for file in cache.iterdir()] == [".lock"]


# In a process of its own: this one may have a session, and a pipeline starts no second one.
START = """
import json, sys
from walflow import Pipeline
from walflow.errors import JarsMissing

class Watched(Pipeline):
    stages = []

    def __setattr__(self, name, value):
        if name == "stage":
            self.stages.append(value)
        super().__setattr__(name, value)

try:
    Watched(json.loads(sys.argv[1])).start()
except JarsMissing:
    print(json.dumps(Watched.stages))
"""


@pytest.mark.spark
def test_a_pipeline_that_starts_says_what_is_fetched(
    database: Database, cache: Path, repository: Path, tmp_path: Path
) -> None:
    settings = {
        "source.uri": database.uri,
        "source.create_publication": True,
        "destination.uri": f"iceberg://{tmp_path}/lake",
        "log.folder": str(tmp_path / "log"),
        "spark.ivy_settings": str(repository),
    }
    ran = subprocess.run(
        [sys.executable, "-c", START, json.dumps(settings)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=400,
    )
    # The live view shows it, for as long as it is so.
    *_, stages = ran.stdout.splitlines()
    assert "starting Spark, fetching jars: 0 MB" in json.loads(stages)


@pytest.mark.spark
def test_a_command_that_starts_spark_says_what_is_fetched(
    room: Room, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WALFLOW_CACHE", str(room.path / "cache"))
    ran = room.run(
        *("as-of", "--to", f"iceberg://{room.path}/lake", "--log", room.path / "log"),
        *("--set", f"spark.ivy_settings={repository}"),
    )
    assert ran.returncode == 42, ran.stderr
    assert "Starting Spark to look into the destination" in ran.stderr
    assert "\nfetching jars: 0 MB …\n" in ran.stderr
