"""What to do when TLS keeps us from connecting: libpq says what happened, and no more."""

from __future__ import annotations

import re

__all__ = ["tls_hint"]

_ROOT = "source.tls.root_certificate (sslrootcert)"
_OWN = "source.tls.certificate and source.tls.key (sslcert, sslkey)"

# Looked for from the top; the words are libpq's, OpenSSL's and the server's.
_HINTS = (
    (
        r"certificate verify failed",
        f"{_ROOT} did not sign the server's certificate, or that has expired: name the certificate "
        "that signed it, or `system` if this machine trusts that one.",
    ),
    (
        r"does not match host name",
        "The server's certificate is for other names: use one of them as the URI's host (with "
        "hostaddr=… if it does not resolve to the server), or give the server a certificate for "
        "this name. source.tls.mode=verify-ca does not compare names, so it accepts any server "
        "with a certificate of the same signer.",
    ),
    (
        r"root certificate file",
        f"Put the certificate that signed the server's there, or name it with {_ROOT}; `system` "
        "means those that this machine trusts. Spark's executors need the file too.",
    ),
    (
        r"requires a valid client certificate|certificate authentication failed",
        f"The server requires a client certificate for this user: name it with {_OWN}. libpq "
        "ignores a file that does not exist.",
    ),
    (
        r"alert (unknown ca|bad certificate|certificate)|alert decrypt error",
        f"The server does not trust the client certificate: {_OWN} must be signed by one in the "
        "server's ssl_ca_file, and not expired.",
    ),
    (
        r"private key file|could not (read|open) certificate file",
        f"Check {_OWN}: they must belong together and be readable here, and the key must be "
        "readable only by its owner (chmod 600). Spark's executors need the files too.",
    ),
    (
        r"does not support SSL, but SSL was required",
        "Turn on TLS at the server (ssl = on, a certificate and a key), or, on a private network, "
        "do without it: --set source.tls.mode=disable",
    ),
    (
        r"alert protocol version|unsupported protocol|SSL protocol version",
        "This machine and the server have no TLS version in common: see "
        "ssl_min_protocol_version and ssl_max_protocol_version, in the URI and at the server.",
    ),
    (
        # With both, TLS was tried first, and is not what is missing.
        r"^(?!.*SSL encryption).*pg_hba\.conf.*no encryption",
        "If the server accepts this user only with TLS: --set source.tls.mode=require. Else check "
        "its pg_hba.conf.",
    ),
)


def tls_hint(text: str) -> str | None:
    """What to do about a failed attempt to connect, in one line of text; None: TLS is not why."""
    return next((hint for pattern, hint in _HINTS if re.search(pattern, text, re.IGNORECASE)), None)
