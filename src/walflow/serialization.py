"""Converts our frozen dataclasses to JSON and back, in the same way everywhere.

Fields with their default value are left out: a busy log has very many records that are mostly
defaults. Positions are integers, sets and tuples are lists. When reading, every field without a
default must be there, and no unknown field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import GenericAlias
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

__all__ = ["from_dict", "from_json", "to_dict", "to_json"]

_Record = TypeVar("_Record")

_adapters: dict[type[Any], TypeAdapter[tuple[Any]]] = {}
"""One adapter a class: creating one takes some milliseconds."""


def to_dict(record: object) -> dict[str, Any]:
    """A value that ``json.dumps`` accepts."""
    (content,) = _adapter(type(record)).dump_python((record,), mode="json", exclude_defaults=True)
    return dict(content)


def to_json(record: object) -> bytes:
    """One line of UTF-8."""
    return _adapter(type(record)).dump_json((record,), exclude_defaults=True)[1:-1]


def from_dict(kind: type[_Record], content: Mapping[str, Any]) -> _Record:
    """Raises ValueError, which says what is wrong."""
    return _read(kind, lambda: _adapter(kind).validate_python((content,)))


def from_json(kind: type[_Record], text: bytes | str) -> _Record:
    """Raises ValueError, which says what is wrong."""
    whole = b"[%s]" % text if isinstance(text, bytes) else f"[{text}]"
    return _read(kind, lambda: _adapter(kind).validate_json(whole))


def _adapter(kind: type[Any]) -> TypeAdapter[tuple[Any]]:
    adapter = _adapters.get(kind)
    if adapter is None:
        # A dataclass takes no configuration from outside, but that of the tuple which holds it.
        whole: Any = GenericAlias(tuple, (kind,))
        adapter = _adapters[kind] = TypeAdapter(whole, config=ConfigDict(extra="forbid"))
    return adapter


def _read(kind: type[_Record], read: Callable[[], tuple[_Record]]) -> _Record:
    try:
        (record,) = read()
    except ValidationError as error:
        # Without the values, which may be long, and without links to pydantic's pages.
        faults = (
            f"{'.'.join(map(str, fault['loc'][1:])) or 'all of it'}: {fault['msg']}"
            for fault in error.errors(include_url=False, include_input=False)
        )
        raise ValueError(f"it is no {kind.__name__} ({'; '.join(faults)})") from None
    return record
