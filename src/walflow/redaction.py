"""Removes secrets from text that is printed, logged or put into errors."""

from __future__ import annotations

import re

__all__ = ["MASK", "is_secret_name", "redacted"]

MASK = "***"

_SENSITIVE_WORD = (
    r"(?:password|passwd|passphrase|pwd|secret|token|credential|"
    r"(?:access|private|account|api)[-_.]?key)"
)
_SENSITIVE_NAME = re.compile(_SENSITIVE_WORD, re.IGNORECASE)

# No pattern begins with a repeat that can start anywhere, so that long texts cost linear time.
# A password that is not percent-encoded may contain @, / or spaces. So everything up to the last @
# is hidden: in a word of running text, or in the whole text if it begins as a URI.
_USER_INFO = re.compile(r"(://[^:/?#@\s]*):\S*@")
_USER_INFO_OF_WHOLE = re.compile(
    r"\A(\s*[a-z][a-z0-9+.\-]*://[^:/?#@\s]*):.*@", re.IGNORECASE | re.DOTALL
)

_ASSIGNMENT = rf"{_SENSITIVE_WORD}[\w.\-]{{0,40}}\s*=\s*"
_IN_QUERY = re.compile(rf"(?<=[?&])([\w.\-]*?{_ASSIGNMENT})[^&\s]+", re.IGNORECASE)
_QUOTED = r"'(?:[^'\\]|\\.)*(?:'|\Z)"
_IN_CONNINFO = re.compile(
    rf"({_ASSIGNMENT})(?!\*\*\*(?:[&\s]|\Z))(?:{_QUOTED}|(?:\\.|\S)+)", re.IGNORECASE | re.DOTALL
)


def is_secret_name(name: str) -> bool:
    """Whether a setting of this name is likely to hold a secret (``s3.secret-access-key``)."""
    return _SENSITIVE_NAME.search(name) is not None


def redacted(uri: str) -> str:
    """The URI, libpq conninfo (``host=… password=…``) or running text with passwords masked.

    It may hide too much (of a malformed URI), never too little. Safe to repeat.
    """
    text = _USER_INFO_OF_WHOLE.sub(rf"\1:{MASK}@", uri)
    text = _USER_INFO.sub(rf"\1:{MASK}@", text)
    text = _IN_QUERY.sub(rf"\1{MASK}", text)
    return _IN_CONNINFO.sub(rf"\1{MASK}", text)
