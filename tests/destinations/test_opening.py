"""Before a destination is opened: what is refused, and that nothing is made."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from walflow.cli import walflow
from walflow.config import Settings, load_settings
from walflow.destinations import (
    OpenDestination,
    check_folder,
    check_uri,
    open_destination,
    warehouse_of,
)
from walflow.destinations.http import HttpDestination, HttpOptions
from walflow.destinations.own import OwnDestination
from walflow.errors import BadUri, ConfigError, DestinationError
from walflow.model import TableName
from walflow.pipeline.pipeline import Pipeline

ONE, TWO = TableName("public", "one"), TableName("public", "two")


def test_a_folder_that_can_be_made_is_not_made(tmp_path: Path) -> None:
    check_folder(tmp_path)
    check_folder(tmp_path / "a" / "lake")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["file", "file/lake", "nowhere", "nowhere/lake"])
def test_what_is_no_folder_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    with pytest.raises(DestinationError, match="is not a folder"):
        check_folder(tmp_path / place)


def test_a_folder_with_signs_of_uris_in_its_name() -> None:
    assert warehouse_of("iceberg:///data/50%25%20%231/lake") == Path("/data/50% #1/lake")
    assert warehouse_of("iceberg:///mnt/c:/lake") == Path("/mnt/c:/lake")


@pytest.mark.parametrize("folder", ["/mnt/c:/log", "/data/backup:/log", "/s3:/log", "a/b:/log"])
def test_a_log_folder_with_a_colon_in_its_path(folder: str) -> None:
    said = {"source.uri": "postgresql://h/d", "destination.uri": "iceberg:///lake"}
    assert load_settings(None, said | {"log.folder": folder}, {}).log_folder == Path(folder)


FOREIGN = [
    "iceberg:s3://bucket/lake",
    "iceberg:s3a://bucket/lake",
    "iceberg:///s3://bucket/lake",
    "iceberg://s3://bucket/lake",
    "iceberg:s3:/bucket/lake",
    "iceberg:/s3%3A//bucket/lake",
    "delta:gs://bucket/lake",
    "delta:abfss://container@account/lake",
    "ICEBERG:S3://bucket/lake",
    "iceberg+s3://bucket/lake",
    "s3://bucket/lake",
    "iceberg:file:///data/lake",
    "iceberg://file:///data/lake",
    "iceberg:///file:/data/lake",
    "file:///data/lake",
    "file:/data/lake",
    "/data/lake",
    "lake",
    "",
    "iceberg:s3:bucket/lake",
    "iceberg:lake",
    "iceberg:./lake",
    "delta:lake/tables",
    "iceberg://lake/tables",
    "iceberg://[lake",
    "iceberg:",
    "iceberg://",
    "iceberg:C:\\data\\lake",
    "iceberg:C:/data/lake",
    "iceberg:///C:/data/lake",
    "C:\\data\\lake",
    "iceberg:///lake?warehouse=s3://bucket",
]


@pytest.mark.parametrize("uri", FOREIGN)
def test_what_names_no_folder_of_this_machine_is_refused(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadUri) as refused:
        open_destination(settings_of(uri), "", spark=ANY_SESSION)
    assert list(tmp_path.iterdir()) == []
    told = refused.value.hint
    assert "iceberg:///" in told or "delta:///" in told
    if "bucket" in uri or "container" in uri:
        assert "destination.options" in told
    if "file:" in uri:
        assert "s3:" not in told


def test_the_folder_that_was_meant_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for uri, meant in (
        ("delta:lake", f"delta://{tmp_path}/lake"),
        ("iceberg:file:///data/lake", "iceberg:///data/lake"),
    ):
        with pytest.raises(BadUri) as refused:
            warehouse_of(uri)
        assert meant in refused.value.hint


def test_secrets_of_a_wrong_uri_are_not_told() -> None:
    for uri in ("iceberg:s3://me:hunter2@bucket/lake", "lake+s3://me:hunter2@bucket/lake"):
        with pytest.raises(BadUri) as refused:
            check_uri(uri)
        assert "hunter2" not in refused.value.message + refused.value.hint


@pytest.mark.parametrize(
    ("uri", "folder"),
    [
        ("iceberg:///data/lake", "/data/lake"),
        ("iceberg:/data/lake", "/data/lake"),
        ("delta:////data//lake/", "/data/lake"),
        ("Iceberg:///data/a:b/2024:01", "/data/a:b/2024:01"),
    ],
)
def test_folders_that_are_named(uri: str, folder: str) -> None:
    check_uri(uri)
    assert str(warehouse_of(uri)) == folder


def run_command(*arguments: str | Path, **environment: str) -> BaseException | None:
    # Nobody listens there: who asks the source first would say so.
    invoked = CliRunner(env={"WALFLOW_SOURCE__URI": "postgresql://me@127.0.0.1:9/x", **environment})
    return invoked.invoke(walflow, [str(argument) for argument in arguments]).exception


@pytest.mark.parametrize("uri", ["iceberg:s3://bucket/lake", "iceberg+s3://bucket/lake"])
def test_commands_refuse_it_first_wherever_it_is_said(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "pipeline.yaml"
    file.write_text(f"destination: {{uri: '{uri}'}}\n")
    log = ("--log", tmp_path / "log")
    for error in (
        run_command("run", "--to", uri, *log),
        run_command("run", file, *log),
        run_command("run", *log, WALFLOW_DESTINATION__URI=uri),
        run_command("init", "other.yaml", "--to", uri),
        run_command("init", "other.yaml", WALFLOW_DESTINATION__URI=uri),
    ):
        assert isinstance(error, BadUri)
        assert "destination.options" in error.hint
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    "folder", ["s3://bucket/log", "file:///data/log", "S3:/bucket", "C:\\log", "C:/log"]
)
def test_a_log_folder_that_is_none_is_refused(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "pipeline.yaml"
    file.write_text(f"log: {{folder: '{folder}'}}\n")
    to = ("--to", f"iceberg://{tmp_path}/lake")
    for error in (
        run_command("run", *to, "--log", folder),
        run_command("run", *to, WALFLOW_LOG__FOLDER=folder),
        run_command("run", *to, file),
        run_command("status", "--log", folder),
        run_command("check", *to, "--log", folder),
    ):
        assert isinstance(error, ConfigError)
        assert "log.folder" in error.message
        assert "must be a path of this machine" in error.message
    assert list(tmp_path.iterdir()) == [file]


def test_the_demo_makes_no_folder_of_a_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    error = run_command("demo", "--folder", "s3://bucket/demo")
    assert isinstance(error, ConfigError)
    assert "not a folder of this machine" in error.message
    assert list(tmp_path.iterdir()) == []


# -- by URI -----------------------------------------------------------------------------------

OWN = """
class Sink:
    name = "sink"

    def __init__(self, url, depth="1"):
        self.url, self.depth = url, depth
        self.calls = []

    def startup(self):
        self.calls.append("startup")

    def shutdown(self):
        self.calls.append("shutdown")

    def truncate_table(self, table): ...
    def write_table_rows(self, table, rows): ...
    def write_events(self, events): ...


class NoSink:
    name = "nothing"


NUMBER = 1
"""
ANY_SESSION: Any = object()


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module in the current folder, which is not among those that Python imports from."""
    (tmp_path / "own_sink.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    yield
    sys.modules.pop("own_sink", None)


def settings_of(uri: str, environment: Any = None, **options: str) -> Settings:
    return load_settings(
        overrides={
            "source.uri": "postgresql://nobody@localhost/nowhere",
            "destination.uri": uri,
            "destination.options": options,
        },
        environment=environment or {},
    )


def given(opened: OpenDestination) -> Any:
    assert isinstance(opened.destination, OwnDestination)
    return opened.destination.given


def test_a_class_of_ones_own(own: None) -> None:
    settings = settings_of("python:own_sink:Sink", url="x", depth="2")
    opened = open_destination(settings, "", spark=ANY_SESSION)
    sink = given(opened)
    assert (sink.url, sink.depth, sink.calls) == ("x", "2", ["startup"])
    opened.close()
    assert sink.calls == ["startup", "shutdown"]


@pytest.mark.parametrize(
    ("uri", "options", "problem"),
    [
        ("python:own_sink", {}, "has to name a module and what to take from it"),
        ("python:own_sink:Sink:more", {}, "has to name a module and what to take from it"),
        (
            "python:not_there:Sink",
            {},
            "cannot be imported: ModuleNotFoundError: No module named 'not_there'",
        ),
        ("python:own_sink:Sunk", {}, "own_sink has no Sunk"),
        ("python:own_sink:NUMBER", {}, "^'NUMBER' in the module own_sink is neither a class nor"),
        ("python:own_sink:Sink", {}, "missing a required argument: 'url'"),
        ("python:own_sink:Sink", {"url": "x", "color": "x"}, "unexpected keyword argument 'color'"),
        ("python:own_sink:NoSink", {}, "lacks truncate_table, write_table_rows, write_events"),
        ("sink://host", {}, "is of no known kind"),
    ],
)
def test_what_is_wrong_with_it_is_told(
    own: None, uri: str, options: dict[str, str], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        open_destination(settings_of(uri, **options), "", spark=ANY_SESSION)


def test_a_pipeline_says_at_once_what_it_was_given() -> None:
    given: Any = object()
    with pytest.raises(ConfigError, match=r"^object is not a destination: it lacks name, trunc"):
        Pipeline({"source.uri": "postgresql://nobody@localhost/nowhere"}, destination=given)


def test_a_kind_that_a_package_brings(own: None, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = metadata.EntryPoint("sink", "own_sink:Sink", "walflow.destinations")
    entries = metadata.EntryPoints([entry])
    monkeypatch.setattr("walflow.plugins.entry_points", lambda **by: entries.select(**by))
    # Its module is imported as any that is installed.
    monkeypatch.syspath_prepend(str(Path.cwd()))
    opened = open_destination(settings_of("sink://host/x"), "", spark=ANY_SESSION)
    assert given(opened).url == "sink://host/x"
    with pytest.raises(BadUri, match="no known kind"):
        open_destination(settings_of("other://host/x"), "", spark=ANY_SESSION)


def test_a_web_service_with_its_secret_in_the_environment() -> None:
    environment = {"WALFLOW_DESTINATION__OPTIONS__SECRET": "s3cret"}
    numbers: Any = {"batch_rows": 7, "gzip": False}
    settings = settings_of("https://host/x", environment, **numbers)
    assert "s3cret" not in f"{settings!r} {settings.model_dump_json()}"
    opened = open_destination(settings, "", spark=ANY_SESSION)
    assert isinstance(given(opened), HttpDestination)
    assert given(opened).options == HttpOptions(secret="s3cret", batch_rows=7, gzip=False)
    opened.close()


def test_a_command_that_reads_lakes_says_so(tmp_path: Path) -> None:
    given = ["--from", "postgresql://me@127.0.0.1:9/x", "--to", "https://me:pass@host/x"]
    arguments = ["as-of", *given, "--log", str(tmp_path)]
    with pytest.raises(ConfigError, match="`walflow as-of` is for tables of a lake") as no:
        CliRunner().invoke(walflow, arguments, catch_exceptions=False)
    assert "pass@" not in str(no.value)
