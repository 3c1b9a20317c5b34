"""The signature of requests, for those who send them and those who receive them.

``Walflow-Signature: t=1763251200,v1=5257a8…``: the time in seconds, and HMAC-SHA256, with the
secret, of ``time.METHOD.target.`` and the body as it was sent (compressed, if it is). The target is
the path with its query. So nobody can send what was signed to another table, or much later.

This file needs nothing but Python: a receiver may copy it.
"""

from __future__ import annotations

import hashlib
import hmac

__all__ = ["SIGNATURE_HEADER", "is_signed", "signature"]

SIGNATURE_HEADER = "Walflow-Signature"


def signature(secret: str, at: int, method: str, target: str, body: bytes) -> str:
    """The header's value."""
    return f"t={at},v1={_digest(secret, at, method, target, body)}"


def is_signed(
    secret: str,
    header: str,
    method: str,
    target: str,
    body: bytes,
    *,
    now: float,
    tolerance: float = 300.0,
) -> bool:
    """Whether the header was made with the secret, for this request, and not too long ago."""
    parts = dict(part.partition("=")[::2] for part in header.split(","))
    try:
        at = int(parts["t"])
        given = parts["v1"]
    except (KeyError, ValueError):
        return False
    expected = _digest(secret, at, method, target, body)
    # As bytes: of texts it compares only those that are ASCII.
    alike = hmac.compare_digest(expected.encode(), given.encode(errors="replace"))
    return alike and abs(now - at) <= tolerance


def _digest(secret: str, at: int, method: str, target: str, body: bytes) -> str:
    signed = f"{at}.{method.upper()}.{target}.".encode() + body
    return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
