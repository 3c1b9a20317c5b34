"""The folder of the demo's files, and which of them stay."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from walflow.errors import ConfigError
from walflow.paths import is_foreign_path, is_there

__all__ = ["DemoFolder", "demo_folder"]


class DemoFolder:
    def __init__(self, path: Path, *, ours: bool) -> None:
        self.path = path
        self._ours = ours
        self._kept = False

    @property
    def made(self) -> list[Path]:
        """What to remove if the demo does not finish."""
        if self._ours:
            return [self.path]
        return [self.path / name for name in ("lake", "log", "tmp")]

    def keep(self, lake: Path) -> None:
        """The demo has finished: keep only the tables."""
        self._kept = True
        for entry in self.path.iterdir():
            if entry != lake:
                shutil.rmtree(entry, ignore_errors=True)

    def close(self) -> None:
        if not self._kept:
            for folder in self.made:
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def demo_folder(wanted: Path | None) -> Iterator[DemoFolder]:
    """The wanted folder, which must be new or empty, or a temporary one; empty again if the
    demo fails."""
    if wanted is None:
        path = Path(tempfile.mkdtemp(prefix="walflow-demo-"))
    else:
        if is_foreign_path(str(wanted)):
            raise ConfigError(
                f"{wanted} is not a folder of this machine.", hint="Name another --folder."
            )
        path = wanted.absolute()
    new = wanted is None or not is_there(path)
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
