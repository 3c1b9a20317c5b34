"""Serve /metrics over HTTP, for as long as a pipeline runs."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server

from walflow.config import host_and_port
from walflow.errors import ConfigError

__all__ = ["serve_metrics"]

_HINT = "Choose another address (metrics_address, WALFLOW_METRICS_ADDRESS), like 127.0.0.1:9000."


@contextmanager
def serve_metrics(address: str, registry: CollectorRegistry) -> Iterator[str]:
    """Serve the registry on host:port while the block runs; gives the URL.

    Port 0 takes any free one. ``[::]:9000`` and ``:9000`` listen on all interfaces.
    """
    try:
        host, port = host_and_port(address)
    except ValueError as error:
        raise ConfigError(f"metrics_address {address!r} {error}.", hint=_HINT) from None
    host = host or ("::" if socket.has_dualstack_ipv6() else "0.0.0.0")  # noqa: S104  # asked for
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise _cannot_listen(address, error) from error
    try:
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _cannot_listen(address: str, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            f"Metrics cannot be served on {address}: the port is in use.",
            hint=f"Another pipeline or exporter may have it (ss -ltnp shows which). {_HINT}",
        )
    return ConfigError(
        f"Metrics cannot be served on {address}: {error.strerror or error}.", hint=_HINT
    )
