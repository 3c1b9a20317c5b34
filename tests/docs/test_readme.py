"""The README's sample of Python runs as it stands there."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Database
from tests.destinations.reference import reading_session
from tests.docs.blocks import ROOT, python_blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAMPLE = next(block for block in python_blocks(ROOT / "README.md") if "Pipeline(" in block)


def test_the_sample_is_short() -> None:
    assert len(SAMPLE.splitlines()) <= 20


def test_type_checkers_are_told_of_the_types() -> None:
    assert files("walflow").joinpath("py.typed").is_file()


@pytest.mark.spark
def test_the_sample_runs(
    database: Database,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, what text)",
        "INSERT INTO orders SELECT n, 'order ' || n FROM generate_series(1, 20) n",
    )
    monkeypatch.setenv("WALFLOW_LOG__FOLDER", str(tmp_path / "log"))
    monkeypatch.setenv("WALFLOW_SOURCE__SLOT", f"slot_{database.name}")
    code = SAMPLE
    for written, real in [
        ("postgresql://user:password@host/shop", database.uri),
        ("/data/lake", str(tmp_path / "lake")),
    ]:
        assert written in code
        code = code.replace(written, real)
    exec(compile(code, "README.md", "exec"), {})
    # Among the lines that walflow logs.
    assert "public.orders 20 rows copied" in capsys.readouterr().out.splitlines()
    stored = reading_session(spark, tmp_path / "lake").table("lake.public.orders")
    assert stored.count() == 20
