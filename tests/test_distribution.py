"""What users install: the wheel works where there is no checkout, and long downloads show life."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT


def made(folder: Path) -> tuple[Path, Path]:
    """The source distribution and the wheel."""
    environment = os.environ | {"PYTHON": sys.executable}
    command = [str(ROOT / "tools" / "make-dist"), str(folder)]
    subprocess.run(command, check=True, env=environment, timeout=300)
    (source,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return source, wheel


def test_the_source_distribution_has_what_belongs_to_it(tmp_path: Path) -> None:
    source, wheel = made(tmp_path / "dist")
    assert wheel.name.endswith("-py3-none-any.whl")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = "src/walflow/__init__.py tests/conftest.py tools/make-venv docs/index.md Makefile"
    assert {*wanted.split(), "LICENSE", "README.md", "requirements.lock"} <= names
    assert not [name for name in names if name.startswith((".venv", ".git/", "dist", "build"))]


@pytest.mark.long
def test_the_wheel_works_in_an_empty_environment(tmp_path: Path) -> None:
    _, wheel = made(tmp_path / "dist")
    home = tmp_path / "environment"
    venv.create(home, with_pip=True)
    # Nothing of the checkout's, as on a machine that has none.
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV", "PYSPARK_PYTHON", "SPARK_HOME", "JAVA_HOME")
        and not name.startswith(("PYTEST", "COV"))
    }

    def run(*command: str | Path, seconds: float = 600) -> str:
        ran = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    extras = f"{wheel}[iceberg,java,postgres]"
    run(home / "bin" / "pip", "install", "--quiet", extras, seconds=1500)
    walflow = home / "bin" / "walflow"
    where = run(home / "bin" / "python", "-c", "import walflow; print(walflow.__file__)")
    assert Path(where.strip()).is_relative_to(home)
    assert run(walflow, "--version").strip() == f"walflow {wheel.name.split('-')[1]}"
    assert "demo" in run(walflow, "--help")
    # Not in pytest's own folder, which is closed to the account that root's servers run as.
    with tempfile.TemporaryDirectory(prefix="walflow-test-", ignore_cleanup_errors=True) as open_:
        Path(open_).chmod(0o711)
        told = run(walflow, "demo", "--seconds", "3", "--folder", f"{open_}/demo")
    assert "equal" in told


def test_without_a_terminal_installing_tells_how_far_it_is() -> None:
    command = [sys.executable, str(ROOT / "tools" / "show-progress"), "0.05"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        assert "looking for the packages" in running.stdout.readline()
        running.stdin.write(
            "Collecting pyspark==4.1.4\n  Downloading a/pyspark.tar.gz (434.2 MB)\n"
        )
        running.stdin.flush()
        # It goes on telling while nothing new comes.
        wanted = "1 packages so far, downloading pyspark.tar.gz (434.2 MB)"
        seen = 0
        while seen < 2:
            seen += wanted in running.stdout.readline()
        running.stdin.close()
        running.stdout.read()
    assert running.returncode == 0
