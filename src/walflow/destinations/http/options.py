"""What can be set of an HTTP destination: ``destination.options``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Self

from walflow.errors import ConfigError

__all__ = ["HttpOptions"]

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True)
class HttpOptions:
    secret: str | None = field(default=None, repr=False)
    """Signs requests. Best given in the environment: WALFLOW_DESTINATION__OPTIONS__SECRET."""
    token: str | None = field(default=None, repr=False)
    """Sent as ``Authorization: Bearer …``."""
    batch_rows: int = 1000
    """How many rows or changes a request has at most."""
    timeout_ms: int = 30_000
    """How long to wait for a connection, and for each piece of the answer."""
    retry_attempts: int = 5
    """How often a request is sent again before the table's batch counts as failed."""
    retry_delay_ms: int = 500
    """How long to wait before the first of these. Doubles, up to 30 s; up to as much again is
    added at random. An answer's Retry-After is obeyed, up to a minute."""
    gzip: bool = True
    """Whether bodies are compressed."""

    def __post_init__(self) -> None:
        for name in ("secret", "token"):
            value = getattr(self, name)
            if value is None or (value and value.isascii() and value.isprintable()):
                continue
            raise ConfigError(
                f"destination.options.{name} is empty, or has what a header cannot have.",
                hint="Letters, digits and signs of ASCII are allowed, and no line breaks.",
            )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """From text. ConfigError names what is wrong, and never shows a value."""
        found: dict[str, str | int | bool] = {}
        for name, text in options.items():
            if name not in cls.__slots__:
                closest = get_close_matches(name, cls.__slots__, n=1)
                raise ConfigError(
                    f"destination.options has {name}, which an HTTP destination has no use for"
                    + (f"; did you mean {closest[0]}?" if closest else "."),
                    hint=f"Known are {', '.join(cls.__slots__)}.",
                )
            if name in ("secret", "token"):
                # Files and variables often end with a line break.
                found[name] = text.strip()
            elif name == "gzip":
                found[name] = _flag(name, text)
            else:
                found[name] = _number(name, text, 0 if name.startswith("retry") else 1)
        return cls(**found)  # type: ignore[arg-type]


def _flag(name: str, text: str) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ConfigError(f"destination.options.{name} must be true or false.")
    return text.lower() in _TRUE


def _number(name: str, text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise ConfigError(f"destination.options.{name} must be a whole number, at least {least}.")
    return int(text)
