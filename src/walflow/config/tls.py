"""TLS to the source: its settings, and files for certificates that the settings have as text."""

from __future__ import annotations

import contextlib
import re
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote, unquote

from pydantic import AfterValidator, BeforeValidator, Field

from walflow.config.values import Section

__all__ = ["TlsSettings", "conninfo_value", "in_files", "with_tls"]

_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")


def _is_pem(text: str) -> bool:
    """Whether this is the text of a certificate, not the name of a file. Other text may come
    first: tools write the owner there."""
    return "-----BEGIN" in text or "\n" in text.strip()


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


def _certificate(text: str) -> str:
    if not _is_pem(text):
        return str(Path(text).expanduser())
    if _KEY.search(text):
        raise ValueError(
            "contains a private key; only certificates belong here, and a key is named by its file"
        )
    # Some secret managers give one line, with \n for line breaks.
    text = text.strip().replace("\\n", "\n") + "\n"
    try:
        ssl.create_default_context(cadata=text)
    except (ssl.SSLError, ValueError):
        raise ValueError(
            "looks like the text of a certificate, but has none: one goes from -----BEGIN "
            "CERTIFICATE----- to -----END CERTIFICATE-----, with its line breaks"
        ) from None
    return text


def _key(text: str) -> str:
    if _is_pem(text):
        raise ValueError(
            "must be the name of the key's file: libpq reads keys only from files, and walflow "
            "writes no private key to disk"
        )
    return str(Path(text).expanduser())


Certificate = Annotated[str, BeforeValidator(_as_text), AfterValidator(_certificate)]
KeyFile = Annotated[str, BeforeValidator(_as_text), AfterValidator(_key)]


class TlsSettings(Section):
    """Encryption of connections to the source, with libpq's settings. Files must also exist on
    Spark's executors, which copy the tables. Certificates can be given as text instead."""

    mode: Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"] | None = (
        Field(
            None,
            description="libpq's sslmode. `require` encrypts, `verify-full` also checks that the "
            "server is the right one. Default: the URI's value; `verify-full` if there is a root "
            "certificate; else libpq's `prefer`.",
        )
    )
    root_certificate: Certificate | None = Field(
        None,
        description="The certificate that signed the server's: its file, its text (PEM, with "
        "-----BEGIN in it), or `system`.",
    )
    certificate: Certificate | None = Field(
        None,
        description="The client's certificate, if the server asks for one: its file or text (PEM).",
    )
    key: KeyFile | None = Field(
        None, description="The file with the key of the client's certificate. (Not its text.)"
    )

    @property
    def parameters(self) -> dict[str, tuple[str, str]]:
        """The libpq parameters that are set, each with its setting and value."""
        said = {
            "sslmode": ("mode", self.mode),
            "sslrootcert": ("root_certificate", self.root_certificate),
            "sslcert": ("certificate", self.certificate),
            "sslkey": ("key", self.key),
        }
        return {
            parameter: (setting, value)
            for parameter, (setting, value) in said.items()
            if value is not None
        }


def with_tls(uri: str, tls: TlsSettings) -> str:
    """The source's URI, or libpq ``key=value`` text, with the section's parameters added.

    Raises ValueError if the URI has other values. Safe to repeat.
    """
    said = tls.parameters
    if not said or not uri.strip():
        return uri
    is_uri = "://" in uri
    given = _in_uri(uri) if is_uri else _in_conninfo(uri)
    for parameter, (setting, value) in said.items():
        if given.get(parameter, value) != value:
            raise ValueError(
                f"the URI has another {parameter} than tls.{setting}; set it in one place"
            )
    more = {parameter: value for parameter, (_, value) in said.items() if parameter not in given}
    if "sslrootcert" in said and "sslmode" not in given and "sslmode" not in more:
        # Without it libpq would not check the server's name.
        more["sslmode"] = "verify-full"
    if not is_uri:
        return " ".join([uri, *(f"{name}={conninfo_value(value)}" for name, value in more.items())])
    if not more:
        return uri
    joint = "&" if "?" in _after_credentials(uri) else "?"
    return uri + joint + "&".join(f"{name}={quote(value)}" for name, value in more.items())


def _in_uri(uri: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in _after_credentials(uri).partition("?")[2].split("&"))
    return {unquote(name): unquote(value) for name, _, value in pairs}


def _after_credentials(uri: str) -> str:
    """The URI from its host on. As libpq finds it: a password may have a question mark."""
    rest = uri.partition("://")[2]
    before, at, after = rest.partition("@")
    return after if at and "/" not in before else rest


def _in_conninfo(text: str) -> dict[str, str]:
    found = re.findall(r"(\w+)\s*=\s*(?:'((?:[^'\\]|\\.)*)'|((?:\\.|[^\s'])*))", text)
    return {name: re.sub(r"\\(.)", r"\1", quoted or bare) for name, quoted, bare in found}


def conninfo_value(value: str) -> str:
    """The value as it has to stand after ``name=``."""
    return "'" + re.sub(r"(['\\])", r"\\\1", value) + "'"


_CERTIFICATES = ("sslrootcert", "sslcert")


@contextlib.contextmanager
def in_files(parameters: Mapping[str, str | None]) -> Iterator[dict[str, str | None]]:
    """libpq's parameters, with the texts of certificates replaced by names of files.

    The files exist only inside the block, and only for this user: libpq reads them when it
    connects. Every process that connects makes its own, also on Spark's executors, so they need
    no files of the driver.
    """
    texts = {name: text for name in _CERTIFICATES if _is_pem(text := parameters.get(name) or "")}
    if not texts:
        yield dict(parameters)
        return
    with tempfile.TemporaryDirectory(prefix="walflow-tls-", ignore_cleanup_errors=True) as folder:
        files = {name: Path(folder, f"{name}.pem") for name in texts}
        for name, file in files.items():
            file.write_text(texts[name], encoding="utf-8")
        yield {**parameters, **{name: str(file) for name, file in files.items()}}
