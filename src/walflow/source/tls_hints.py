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
        f"{_ROOT} did not sign the server's certificate, or it has run out: name the certificate "
        "of who signed it, or `system` if that is one that this machine trusts.",
    ),
    (
        r"does not match host name",
        "The server's certificate is for other names: say one of them as the URI's host, with "
        "hostaddr=… for the address if it does not lead there, or let the server have a "
        "certificate for this one. verify-ca in source.tls.mode does not compare names, so any "
        "server with a certificate of the same signer passes.",
    ),
    (
        r"root certificate file",
        f"Put the certificate of who signed the server's there, or name it with {_ROOT}; `system` "
        "stands for those that this machine trusts. Spark's executors need the file, too.",
    ),
    (
        r"requires a valid client certificate|certificate authentication failed",
        f"The server wants a certificate of ours, for this user: name it with {_OWN}. A file that "
        "is not there is the same to libpq as none.",
    ),
    (
        r"alert (unknown ca|bad certificate|certificate)|alert decrypt error",
        f"The server does not trust the certificate that we show: {_OWN} must be one that is "
        "signed by who the server's ssl_ca_file names, and has not run out.",
    ),
    (
        r"private key file|could not (read|open) certificate file",
        f"Look at {_OWN}: they must belong together, be readable here, and the key be readable "
        "for its owner alone (chmod 600). Spark's executors need the files, too.",
    ),
    (
        r"does not support SSL, but SSL was required",
        "Turn TLS on at the server (ssl = on, a certificate and a key), or, where nobody else is "
        "on the network, do without: --set source.tls.mode=disable",
    ),
    (
        r"alert protocol version|unsupported protocol|SSL protocol version",
        "This machine and the server have no version of TLS in common: see "
        "ssl_min_protocol_version and ssl_max_protocol_version, in the URI and at the server.",
    ),
    (
        # With both, TLS was tried first, and is not what is missing.
        r"^(?!.*SSL encryption).*pg_hba\.conf.*no encryption",
        "If the server takes this user by TLS only: --set source.tls.mode=require. Else see its "
        "pg_hba.conf.",
    ),
)


def tls_hint(text: str) -> str | None:
    """What to do about a failed attempt to connect, in one line of text; None: TLS is not why."""
    return next((hint for pattern, hint in _HINTS if re.search(pattern, text, re.IGNORECASE)), None)
