"""The pages of the Python API; mkdocstrings fills them from signatures and docstrings."""

from __future__ import annotations

from collections.abc import Mapping

import walflow
from tools.docs.markdown import code

__all__ = ["API_PAGES", "api_pages"]

_AT_THE_TOP = ", ".join(map(code, walflow.__all__))

API_PAGES: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "pipelines": (
        "Pipelines and settings",
        f"A pipeline in your own program. In `walflow` itself: {_AT_THE_TOP}.",
        ("walflow.pipeline.pipeline", "walflow.config"),
    ),
    "destinations": (
        "Destinations",
        "What a destination must do and can do, base classes, and the classes that it gets.",
        (
            "walflow.destinations.own",
            "walflow.destinations.base",
            "walflow.destinations.rowwise",
            "walflow.destinations.arrow",
            "walflow.destinations.http",
            "walflow.model",
            "walflow.evolution",
        ),
    ),
    "stores": (
        "Stores",
        "What a store must do, and what it keeps.",
        ("walflow.stores.base", "walflow.stores.cached", "walflow.stores.memory", "walflow.states"),
    ),
    "testing": (
        "Testing",
        "For your own tests: contracts for stores and destinations, faults, and embedded servers.",
        (
            "walflow.testing.destinations",
            "walflow.testing.stores",
            "walflow.testing.faults",
            "walflow.testing.sources",
            "walflow.testing.spark",
            "walflow.testing.postgres",
            "walflow.testing.redis",
        ),
    ),
}
"""For each page its title, its introduction and its modules."""


def api_pages() -> dict[str, str]:
    return {
        f"reference/api/{name}.md": _page(title, introduction, modules)
        for name, (title, introduction, modules) in API_PAGES.items()
    }


def _page(title: str, introduction: str, modules: tuple[str, ...]) -> str:
    lines = [f"# {title}", "", introduction, ""]
    for module in modules:
        lines += [f"::: {module}", ""]
    return "\n".join(lines)
