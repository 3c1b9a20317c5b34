"""The types of settings' values (how each is read from text and checked), and their sections."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from walflow.paths import is_foreign_path

__all__ = [
    "Address",
    "HomePath",
    "Memory",
    "NumericType",
    "Options",
    "PipelineName",
    "Section",
    "SlotName",
    "SourceTable",
    "TableNames",
    "TablePatterns",
    "Template",
    "host_and_port",
    "parse_object",
]


def host_and_port(address: str) -> tuple[str, int]:
    """Read ``host:port``, ``[v6-address]:port`` or ``:port`` (all interfaces)."""
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not (port.isascii() and port.isdigit()) or (":" in host and not bracketed):
        raise ValueError("must be host:port, like 127.0.0.1:9000 or [::]:9000")
    if int(port) > 65535:
        raise ValueError("has a port above 65535")
    return host.strip("[]") if bracketed else host, int(port)


def _address(text: str) -> str:
    host_and_port(text)
    return text


def _matching(pattern: str, problem: str) -> Callable[[str], str]:
    """A check that the whole text matches; ``problem`` says what is wrong if it does not."""
    compiled = re.compile(pattern, re.ASCII)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(problem)
        return text

    return check


def _numeric_type(text: str) -> str:
    if text in ("double", "string"):
        return text
    digits = re.fullmatch(r"decimal\((\d{1,2}),(\d{1,2})\)", text, re.ASCII)
    if digits is None:
        raise ValueError("must be decimal(precision,scale), double or string")
    precision, scale = map(int, digits.groups())
    if not 1 <= precision <= 38 or scale > precision:
        raise ValueError("a decimal has 1 to 38 digits, and no more than these after the point")
    return text


def _split_words(value: object) -> object:
    """In the environment and on the command line, ``a.b, c.d`` is a list."""
    if not isinstance(value, str):
        return value
    return [word.strip() for word in value.split(",") if word.strip()]


def parse_object(value: object) -> object:
    """In the environment and on the command line, a JSON object is a mapping."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError("must be a mapping (as text: a JSON object)") from None


def _option(value: object) -> object:
    """Options are text, but YAML reads 500 and true as other types."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _template(text: str) -> str:
    halves = text.split(".")
    if len(halves) != 2 or not all(_HALF.fullmatch(half) for half in halves):
        raise ValueError(
            "must be namespace.table, with {schema} and {table} for the source's names, like "
            "lake.{schema}__{table}"
        )
    return text


def _source_table(text: str) -> str:
    schema, _, table = text.partition(".")  # a name may have dots in it
    if not schema.strip() or not table.strip():
        raise ValueError("a table of the source is named with its schema, like public.orders")
    return text


def _table_pattern(text: str) -> str:
    schema, _, table = text.partition(".")
    if not schema.strip() or not table.strip():
        raise ValueError("a pattern has a schema and a table, like public.orders or public.*")
    return text


def _destination_table(text: str) -> str:
    halves = text.split(".")
    if len(halves) != 2 or not all(half.strip() for half in halves):
        raise ValueError("the destination's name must be namespace.table, like sales.orders")
    return text


# Nothing else that str.format supports: no {table[0]}, {table!r} or {table:9}.
_HALF = re.compile(r"(?!\s*$)(?:[^{}]|\{schema\}|\{table\})+")


def _path_here(path: Path) -> Path:
    if is_foreign_path(str(path)):
        raise ValueError("must be a path of this machine, like /data/log, not a URI")
    return path.expanduser()


Address = Annotated[str, AfterValidator(_address)]
HomePath = Annotated[Path, AfterValidator(_path_here)]
Memory = Annotated[
    str, AfterValidator(_matching(r"\d+[kmgtKMGT][bB]?", "must be a number with a unit, like 2g"))
]
NumericType = Annotated[str, AfterValidator(_numeric_type)]
PipelineName = Annotated[
    str,
    AfterValidator(
        _matching("[a-z0-9_]{1,50}", "must be 1 to 50 small letters, digits and underscores")
    ),
]
SlotName = Annotated[
    str,
    AfterValidator(
        _matching("[a-z0-9_]{1,63}", "must be 1 to 63 small letters, digits and underscores")
    ),
]
Template = Annotated[str, AfterValidator(_template)]
TablePatterns = Annotated[
    tuple[Annotated[str, AfterValidator(_table_pattern)], ...], BeforeValidator(_split_words)
]
Options = Annotated[
    dict[str, Annotated[str, BeforeValidator(_option)]], BeforeValidator(parse_object)
]
SourceTable = Annotated[str, AfterValidator(_source_table)]
TableNames = Annotated[
    dict[
        SourceTable,
        Annotated[str, AfterValidator(_destination_table)],
    ],
    BeforeValidator(parse_object),
]


class Section(BaseModel):
    # Inputs stay out of errors and tracebacks: any of them may be a secret in the wrong place.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
