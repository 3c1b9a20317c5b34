"""URIs without their passwords, as they can be written into a file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

from walflow.config.keys import variable_of
from walflow.redaction import redacted

__all__ = ["WrittenUri", "written_destination", "written_source"]

_PASSWORD = re.compile(r"([a-z][a-z0-9+.\-]*://[^:/?#@]*:)(.+)(@[^@]*)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class WrittenUri:
    text: str
    """With ``${NAME}`` in place of secrets; empty if the secrets cannot be replaced."""
    variables: tuple[str, ...] = ()
    """The environment variables that must be set."""


def written_source(uri: str) -> WrittenUri:
    """A source that libpq can read, URI or ``key=value``, as a URI."""
    given = {name: str(value) for name, value in conninfo_to_dict(uri).items()}
    variables = []
    user = quote(given.pop("user", ""), safe="")
    if given.pop("password", ""):
        variables.append("WALFLOW_SOURCE_PASSWORD")
        user += ":${WALFLOW_SOURCE_PASSWORD}"
    where = ""
    if not given.get("host", "").startswith("/"):
        hosts, ports = given.pop("host", "").split(","), given.pop("port", "").split(",")
        if len(ports) == 1:
            ports *= len(hosts)
        where = ",".join(map(_host, hosts, ports))
    database = quote(given.pop("dbname", ""), safe="")
    parameters = []
    for name, value in given.items():
        if name == "sslpassword":
            variables.append("WALFLOW_SOURCE_SSLPASSWORD")
            parameters.append("sslpassword=${WALFLOW_SOURCE_SSLPASSWORD}")
        else:
            parameters.append(f"{name}={quote(value, safe='/')}")
    return WrittenUri(
        f"postgresql://{user}{'@' if user else ''}{where}/{database}"
        + ("?" + "&".join(parameters) if parameters else ""),
        tuple(variables),
    )


def _host(host: str, port: str) -> str:
    named = f"[{host}]" if ":" in host else quote(host, safe="")
    return f"{named}:{port}" if port else named


def written_destination(uri: str) -> WrittenUri:
    """A destination's URI; empty if it has secrets elsewhere than in the password."""
    found = _PASSWORD.fullmatch(uri)
    if found is None:
        return _whole(uri.replace("${", "$${"), ())
    before, _, behind = (part.replace("${", "$${") for part in found.groups())
    name = "WALFLOW_DESTINATION_PASSWORD"
    return _whole(f"{before}${{{name}}}{behind}", (name,))


def _whole(text: str, variables: tuple[str, ...]) -> WrittenUri:
    plain = text.replace("${WALFLOW_DESTINATION_PASSWORD}", "***")
    if redacted(plain) != plain:
        return WrittenUri("", (variable_of(("destination", "uri")),))
    return WrittenUri(text, variables)
