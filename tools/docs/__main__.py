"""``python -m tools.docs build`` or ``serve``: see ``make docs`` and ``make docs-serve``."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tools.docs.assembling import assemble, copy_changed
from tools.docs.links import broken_links

_ROOT = Path(__file__).parents[2]
_DOCS = _ROOT / "docs"
_ASSEMBLED = _ROOT / "build" / "docs"
_SITE = _ROOT / "build" / "site"
# Where the package is: a virtual environment need not be entered.
_ZENSICAL = (sys.executable, "-m", "zensical")


def main(task: str) -> int:
    assemble(_DOCS, _ASSEMBLED)
    return {"build": _build, "serve": _serve}[task]()


def _build() -> int:
    built = subprocess.run(
        [*_ZENSICAL, "build", "--strict", "--clean"], cwd=_ROOT, stderr=subprocess.PIPE, text=True
    )
    # Strict mode ends in a stack trace, under which one would look for the warnings in vain.
    told, _, trace = built.stderr.partition("Traceback (most recent call last):\n")
    print(told if "--strict" in trace else built.stderr, end="", file=sys.stderr)
    if built.returncode:
        return built.returncode
    broken = broken_links(_SITE)
    for line in broken:
        print(f"broken link in {line}", file=sys.stderr)
    print(f"{len(list(_SITE.rglob('*.html')))} pages in {_SITE}, {len(broken)} broken links")
    return 1 if broken else 0


def _serve() -> int:
    with subprocess.Popen([*_ZENSICAL, "serve"], cwd=_ROOT) as server:
        try:
            while server.poll() is None:
                copy_changed(_DOCS, _ASSEMBLED)
                time.sleep(0.5)
        except KeyboardInterrupt:
            server.terminate()
    return server.returncode or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
