"""Tables sent to a web service: rows and changes as typed JSON. docs/reference/http.md is the
protocol."""

from walflow.errors import ConfigError

try:
    import httpx  # noqa: F401 - asked for here, so that an error says what to install
except ModuleNotFoundError as missing:
    raise ConfigError(
        "An HTTP destination needs the Python package httpx.",
        hint="Install it: pip install 'walflow[http]'",
    ) from missing

from walflow.destinations.http.destination import HttpDestination
from walflow.destinations.http.options import HttpOptions
from walflow.destinations.http.signature import SIGNATURE_HEADER, is_signed, signature

__all__ = ["SIGNATURE_HEADER", "HttpDestination", "HttpOptions", "is_signed", "signature"]
