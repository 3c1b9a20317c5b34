"""What is told when Spark fails: the innermost cause, with its place, and whether it may pass."""

from __future__ import annotations

import re

import pytest

from walflow.destinations.lake.spark_errors import as_our_errors
from walflow.errors import DestinationError, TableLocked
from walflow.pipeline.state.retries import first_line
from walflow.spark.causes import cause_of

TASK = """An error occurred while calling o81.sql.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 \
times, most recent failure: Lost task 0.0 in stage 1.0 (TID 1) (192.0.2.2 executor driver): \
java.io.UncheckedIOException: Failed to create Parquet file
\tat org.apache.iceberg.parquet.ParquetWriter.ensureWriterInitialized(ParquetWriter.java:112)
Caused by: java.io.FileNotFoundException: /lake/public/t/data/0.parquet (Permission denied)
\tat java.base/java.io.FileOutputStream.open0(Native Method)
\t... 35 more

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2844)
Caused by: java.io.UncheckedIOException: Failed to create Parquet file
\tat org.apache.iceberg.parquet.ParquetWriter.ensureWriterInitialized(ParquetWriter.java:112)
Caused by: java.io.FileNotFoundException: /lake/public/t/data/0.parquet (Permission denied)
\tat java.base/java.io.FileOutputStream.open0(Native Method)"""
FLAT_TASK = TASK.partition("\n\tat")[0].replace(
    "UncheckedIOException: Failed to create Parquet file",
    "FileNotFoundException: /lake/x.parquet (Permission denied)",
)
MKDIRS = """org.apache.iceberg.exceptions.RuntimeIOException: Failed to create file: /l/p/u/m/1.json
\tat org.apache.iceberg.hadoop.HadoopOutputFile.createOrOverwrite(HadoopOutputFile.java:87)
Caused by: java.io.IOException: Mkdirs failed to create /l/p/u/m (exists=false, cwd=file:/work)
\tat org.apache.hadoop.fs.ChecksumFileSystem.create(ChecksumFileSystem.java:730)"""
DENIED = """java.io.UncheckedIOException: java.nio.file.AccessDeniedException: /lake/_delta_log
\tat io.delta.Log.write(Log.java:1)
Caused by: java.nio.file.AccessDeniedException: /lake/_delta_log
\tat java.base/sun.nio.fs.UnixException.translate(UnixException.java:90)"""
REFUSED = """org.apache.iceberg.exceptions.RESTException: Error while processing GET request
\tat org.apache.iceberg.rest.HTTPClient.execute(HTTPClient.java:333)
Caused by: org.apache.hc.client5.http.HttpHostConnectException: Connect to http://c:8181 failed: \
Connection refused
\tat java.base/sun.nio.ch.Net.pollConnect(Native Method)"""
REFUSED_BELOW = REFUSED + "\nCaused by: java.net.ConnectException: Connection refused"
NO_HOST = """org.apache.iceberg.exceptions.RESTException: Error while processing GET request
Caused by: java.net.UnknownHostException: nowhere.invalid: Name or service not known"""
NO_URI = """org.apache.spark.SparkException: [INTERNAL_ERROR] The Spark SQL phase analysis failed \
with an internal error. You hit a bug in Spark or the Spark plugins you use. SQLSTATE: XX000
\tat org.apache.spark.SparkException$.internalError(SparkException.scala:107)
Caused by: java.lang.NullPointerException: Invalid uri for http client: null
\tat org.apache.iceberg.rest.HTTPClient.<init>(HTTPClient.java:1)"""
NO_CLASS = """java.lang.IllegalArgumentException: Cannot initialize Catalog implementation \
org.x.Y: Cannot find constructor for interface org.apache.iceberg.catalog.Catalog
\tMissing org.x.Y [java.lang.ClassNotFoundException: org.x.Y]
\tat org.apache.iceberg.CatalogUtil.loadCatalog(CatalogUtil.java:281)
Caused by: java.lang.NoSuchMethodException: Cannot find constructor for interface \
org.apache.iceberg.catalog.Catalog"""
PYTHON = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/x/worker.py", line 1, in main
    import walflow

ModuleNotFoundError: No module named 'walflow'
"""
NOTHING = (
    "java.lang.IllegalStateException: Snapshot 7 is gone\nCaused by: java.lang.RuntimeException"
)


FORBIDDEN = """org.apache.spark.SparkException: Writing job aborted
Caused by: org.apache.iceberg.exceptions.ForbiddenException: Forbidden: no grant on public.t"""
EXPIRED = "org.apache.iceberg.exceptions.NotAuthorizedException: Not authorized: token expired"
NO_GRANT = """org.apache.iceberg.jdbc.UncheckedSQLException: Cannot list tables
Caused by: org.postgresql.util.PSQLException: ERROR: permission denied for schema x"""
READ_ONLY = "java.nio.file.FileSystemException: /lake/t/a.parquet: Read-only file system"


@pytest.mark.parametrize(
    ("text", "message", "may_pass", "hint"),
    [
        (TASK, "/lake/public/t/data/0.parquet (Permission denied)", False, "the right to write"),
        (FLAT_TASK, "/lake/x.parquet (Permission denied)", False, "the right to write"),
        (
            MKDIRS,
            "the folder /l/p/u/m cannot be created: no right, or a file has its name",
            False,
            "destination.uri",
        ),
        (DENIED, "permission denied: /lake/_delta_log", False, "the right to write"),
        (REFUSED, "Connect to http://c:8181 failed: Connection refused", True, "the server runs"),
        (REFUSED_BELOW, "Connect to http://c:8181 failed: Connection refused", True, "address"),
        (
            NO_HOST,
            "unknown host: nowhere.invalid: Name or service not known",
            True,
            "destination.options",
        ),
        (NO_URI, "Invalid uri for http client: null", False, "Check destination.options"),
        (
            NO_CLASS,
            "Cannot initialize Catalog implementation org.x.Y: Cannot find constructor for "
            "interface org.apache.iceberg.catalog.Catalog",
            False,
            "spark.jars",
        ),
        (
            "java.lang.UnsupportedOperationException: Unknown catalog type: unknwon",
            "Unknown catalog type: unknwon",
            False,
            "Check destination.options",
        ),
        (PYTHON, "ModuleNotFoundError: No module named 'walflow'", True, "--debug"),
        (NOTHING, "Snapshot 7 is gone", True, "--debug"),
        (
            FORBIDDEN,
            "ForbiddenException: Forbidden: no grant on public.t",
            False,
            "the right to write",
        ),
        (EXPIRED, "NotAuthorizedException: Not authorized: token expired", True, "Check the token"),
        (
            NO_GRANT,
            "Cannot list tables: ERROR: permission denied for schema x",
            False,
            "the right to write",
        ),
        (
            READ_ONLY,
            "FileSystemException: /lake/t/a.parquet: Read-only file system",
            False,
            "the right to write",
        ),
        ("", "RuntimeError", True, "--debug"),
    ],
)
def test_the_cause_is_told(text: str, message: str, may_pass: bool, hint: str) -> None:
    error = RuntimeError(text.replace("\\\n", ""))
    assert cause_of(error).message == message
    assert first_line(error) == message
    expected = f"^lake.t: {re.escape(message)}"
    with pytest.raises(DestinationError, match=expected) as told, as_our_errors("lake.t"):
        raise error
    assert told.value.retry is may_pass
    assert hint in told.value.hint
    assert "The change log keeps what is not applied." in told.value.hint


NAMES = ("forbidden_words", "permission denied", "AccessDeniedException", "Unknown catalog type")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "text",
    [
        "java.net.SocketTimeoutException: Read timed out: http://c:1/v1/namespaces/a/tables/{}",
        "java.io.FileNotFoundException: /lake/a/{}/data/0.parquet (No space left on device)",
        "java.lang.IllegalStateException: lake.public.`{}` has no snapshot 7",
        "java.lang.IllegalStateException: Cannot commit lake.public.{}: it was changed",
    ],
)
def test_the_name_of_a_table_is_no_cause(name: str, text: str) -> None:
    if " " in name and "lake.public.{}" in text:
        return  # Spark quotes such names.
    cause = cause_of(RuntimeError(text.format(name)))
    assert cause.may_pass
    assert cause.not_allowed is cause.mistaken is False


def test_our_own_errors_stay_as_they_are() -> None:
    with pytest.raises(TableLocked, match="locked"), as_our_errors("lake.t"):
        raise TableLocked("locked")
    assert first_line(TableLocked("a: b\nc")) == "a: b"
