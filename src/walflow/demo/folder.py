"""The folder of the demo's files, which of them stay, and a program that reads its tables."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from walflow.destinations.iceberg import EXTENSIONS, catalog_conf
from walflow.errors import ConfigError
from walflow.paths import is_foreign_path, is_there
from walflow.spark.jars import ICEBERG, find_jars
from walflow.spark.java import find_java

__all__ = ["DemoFolder", "demo_folder", "query_program"]


class DemoFolder:
    def __init__(self, path: Path, *, ours: bool) -> None:
        self.path = path
        self._ours = ours
        self._finished = False

    @property
    def made(self) -> list[Path]:
        """What to remove if the demo does not finish."""
        if self._ours:
            return [self.path]
        return [self.path / name for name in ("lake", "log", "tmp")]

    def keep(self, lake: Path) -> None:
        """The demo has finished: keep only the tables."""
        self._finished = True
        for entry in self.path.iterdir():
            if entry != lake:
                shutil.rmtree(entry, ignore_errors=True)

    def close(self) -> None:
        if not self._finished:
            for folder in self.made:
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def demo_folder(named: Path | None) -> Iterator[DemoFolder]:
    """The folder that is named, which must be new or empty, or a temporary one; empty again if the
    demo fails."""
    if named is None:
        path = Path(tempfile.mkdtemp(prefix="walflow-demo-"))
    else:
        if is_foreign_path(str(named)):
            raise ConfigError(
                f"{named} is not a folder of this machine.", hint="Name another --folder."
            )
        path = named.absolute()
    new = named is None or not is_there(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise ConfigError(
                f"The folder {path} is not empty.", hint="Name a new folder for the demo's tables."
            )
        # If we are root, Postgres runs under another account, and must reach its folder in here.
        path.chmod(path.stat().st_mode | 0o711)
    except OSError as error:
        doing = "made" if new else "used"
        raise ConfigError(
            f"The folder {path} cannot be {doing}: {error.strerror}.", hint="Name another --folder."
        ) from error
    folder = DemoFolder(path, ours=new)
    try:
        yield folder
    finally:
        folder.close()


_PROGRAM = """\
import os

from pyspark.sql import SparkSession

os.environ["JAVA_HOME"] = {java!r}
spark = (
    SparkSession.builder.master("local[*]")
{conf}
    .getOrCreate()
)
spark.sql("SELECT status, count(*), sum(total) FROM lake.shop.orders GROUP BY status").show()
spark.sql("SELECT id, credit, valid_until, _EXACT FROM lake.shop.customers"
          " WHERE _EXACT IS NOT NULL ORDER BY id").show(5, truncate=False)
"""


def query_program(lake: Path) -> str:
    """The program's text, with the paths of Java and jars on this machine."""
    jars = ",".join(map(str, find_jars([ICEBERG])))
    conf = {
        "spark.jars": jars,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.extensions": EXTENSIONS,
        **catalog_conf(str(lake), {}),
    }
    lines = [f'    .config("{name}", {value!r})' for name, value in conf.items()]
    return _PROGRAM.format(java=str(find_java().home), conf="\n".join(lines))
