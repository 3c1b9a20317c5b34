"""Stores and destinations of the user's own, named by a URI.

``python:module:Name`` names a class or function in a module that can be imported, also from the
current folder. ``kind://…`` names what an installed package has registered as ``kind`` in the group
of entry points (``walflow.destinations``, ``walflow.stores``).
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from operator import attrgetter
from typing import Any

from walflow.errors import BadUri, ConfigError

__all__ = ["PYTHON", "installed", "load_object", "made"]

PYTHON = "python"
"""The scheme of URIs that name an object of a module."""


def load_object(uri: str) -> Callable[..., Any]:
    """The object that ``python:module:Name`` names."""
    _, module, name = [*uri.split(":", 2), "", ""][:3]
    if not module or not name or uri.count(":") > 2:
        raise BadUri(
            "A URI that begins with python: has to name a module and what to take from it.",
            hint="For example python:shop.sinks:Webhook, which is Webhook in shop/sinks.py.",
        )
    try:
        imported = _imported(module)
    except Exception as error:
        raise ConfigError(
            f"The module of {PYTHON}:{module}:{name} cannot be imported: "
            f"{type(error).__name__}: {error}.",
            hint="It is looked for in the current folder, in PYTHONPATH, and among what is "
            "installed where walflow is.",
        ) from error
    try:
        found = attrgetter(name)(imported)
    except AttributeError:
        raise ConfigError(f"The module {module} has no {name}.") from None
    if not callable(found):
        raise ConfigError(f"{name!r} in the module {module} is neither a class nor a function.")
    return found  # type: ignore[no-any-return]


def _imported(module: str) -> object:
    # A command has not the folder that it is called in among the places to import from.
    here = os.getcwd()  # noqa: PTH109 - compared to what sys.path has, which is text
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    return import_module(module)


def installed(group: str, kind: str) -> Callable[..., Any] | None:
    """What an installed package registers for URIs of this kind, if one does."""
    found = next(iter(entry_points(group=group, name=kind)), None)
    return None if found is None else found.load()


def made(factory: Callable[..., Any], what: str, *args: object, options: Mapping[str, str]) -> Any:
    """Call the user's class; ConfigError if it does not take these arguments."""
    try:
        inspect.signature(factory).bind(*args, **options)
    except TypeError as error:
        name = getattr(factory, "__qualname__", repr(factory))
        raise ConfigError(
            f"{what} cannot be made: {name}{inspect.signature(factory)}: {error}.",
            hint="The options in the settings are its arguments by name; given are "
            f"{', '.join(options) or 'none'}.",
        ) from error
    return factory(*args, **options)
