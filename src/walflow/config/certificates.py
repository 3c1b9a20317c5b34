"""Files for certificates that the settings have as text, because libpq reads only files."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from walflow.config.tls import is_pem

__all__ = ["in_files"]

_CERTIFICATES = ("sslrootcert", "sslcert")


@contextlib.contextmanager
def in_files(parameters: Mapping[str, str | None]) -> Iterator[dict[str, str | None]]:
    """libpq's parameters, with the texts of certificates replaced by names of files.

    The files exist only inside the block, and only for this user: libpq reads them when it
    connects. Every process that connects makes its own, also on Spark's executors, so they need
    no files of the driver.
    """
    texts = {name: text for name in _CERTIFICATES if is_pem(text := parameters.get(name) or "")}
    if not texts:
        yield dict(parameters)
        return
    with tempfile.TemporaryDirectory(prefix="walflow-tls-", ignore_cleanup_errors=True) as folder:
        files = {name: Path(folder, f"{name}.pem") for name in texts}
        for name, file in files.items():
            file.write_text(texts[name], encoding="utf-8")
        yield {**parameters, **{name: str(file) for name, file in files.items()}}
