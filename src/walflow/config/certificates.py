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
    """libpq's parameters, with the name of a file where there is the text of a certificate.

    The files are there inside the block only, and for this user alone: libpq reads them while it
    connects. That is so in every process that connects, also in those of Spark's executors, which
    are given the text and need no file of the driver's.
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
