"""Destinations' URIs: which kind one names, and what is refused because it is not understood."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from walflow.errors import BadUri
from walflow.paths import is_foreign_path
from walflow.plugins import PYTHON, installed
from walflow.redaction import redacted

__all__ = [
    "GROUP",
    "LAKES",
    "check_uri",
    "is_lake",
    "is_web",
    "kind_of",
    "same_place",
    "warehouse_of",
]

LAKES = ("iceberg", "delta")
"""Formats of a lake, as URIs name them."""
GROUP = "walflow.destinations"
"""Entry points of kinds that packages bring."""

_WEB = ("http", "https")
_FOLDER = "For example iceberg:///data/lake. Settings of the catalog go into destination.options."
_KIND = re.compile(r"[a-z][a-z0-9+.\-]+:", re.IGNORECASE)
_OBJECT_STORE = (
    "The URI names a folder of this machine, like iceberg:///data/lake. For Iceberg tables in an "
    "object store, keep such a URI and name the store in destination.options, by a catalog of type "
    "rest or jdbc with warehouse: s3://bucket/lake (see docs/how-to/choose-a-catalog.md). Delta "
    "tables are kept in folders only."
)


def kind_of(uri: str) -> str:
    """The scheme; empty if there is none."""
    return _split(uri).scheme


def is_lake(uri: str) -> bool:
    """Whether the URI names a lake, of whatever format."""
    return kind_of(uri) in LAKES


def is_web(uri: str) -> bool:
    """Whether the URI names a web service."""
    return kind_of(uri) in _WEB


def check_uri(uri: str) -> None:
    """BadUri if the URI names no destination. Opens nothing, and makes nothing."""
    kind = kind_of(uri)
    if kind not in (*_WEB, PYTHON) and (kind in LAKES or installed(GROUP, kind) is None):
        warehouse_of(uri)


def same_place(uri: str, other: str) -> bool:
    """Whether both name one place, however they write it."""
    return _place(uri) == _place(other)


def _place(uri: str) -> str:
    if is_lake(uri):
        with suppress(BadUri):
            return f"{kind_of(uri)}:{warehouse_of(uri).resolve()}"
    return redacted(uri).rstrip("/")


def warehouse_of(uri: str) -> Path:
    """The folder that a lake's URI names."""
    parts = _split(uri)
    shown = repr(redacted(uri))
    if parts.scheme not in LAKES:
        known = ", ".join((*LAKES, *_WEB, PYTHON))
        raise BadUri(
            f"The destination {shown} is of no known kind (known: {known}).",
            hint=_hint_for_unknown(uri, parts.scheme),
        )
    path = unquote(parts.path)
    inner = unquote(uri.partition(":")[2]).lstrip("/")
    if is_foreign_path(inner):
        file = re.match(r"file:/*(?P<path>.+)", inner, re.IGNORECASE | re.DOTALL)
        raise BadUri(
            f"The destination {shown} has another URI, or a path of another system, where the "
            "path of a folder should be.",
            hint=f"Write {parts.scheme}:///{file['path']}" if file else _OBJECT_STORE,
        )
    if parts.netloc or parts.query or parts.fragment or not path:
        raise BadUri(
            f"The destination {shown} does not name a folder: three slashes, then the path.",
            hint=_FOLDER,
        )
    if not path.startswith("/"):
        # Started elsewhere, the same settings would name another lake.
        raise BadUri(
            f"The destination {shown} names a folder by a relative path.",
            hint=_OBJECT_STORE
            if _KIND.match(path)
            else f"Write the whole path: {parts.scheme}://{Path(path).absolute()}",
        )
    return Path("/" + path.lstrip("/"))


def _split(uri: str) -> SplitResult:
    try:
        return urlsplit(uri)
    except ValueError as error:
        raise BadUri(f"The destination {redacted(uri)!r} is not a URI: {error}.") from error


def _hint_for_unknown(uri: str, kind: str) -> str | None:
    if not kind or len(kind) == 1 or kind == "file":
        return f"A folder is named by iceberg:///folder or delta:///folder. {_FOLDER}"
    if re.match(r"[a-z0-9+.\-]*://", uri, re.IGNORECASE) and (
        "+" in kind or kind in ("s3", "s3a", "s3n", "gs", "abfs", "abfss", "wasb", "wasbs", "hdfs")
    ):
        return _OBJECT_STORE
    return None
