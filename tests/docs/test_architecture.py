"""docs/explanation/architecture.md walks through the code: the names on its way are there."""

from __future__ import annotations

import ast
import re

import pytest

from tests.docs.blocks import ROOT

PAGE = ROOT / "docs" / "explanation" / "architecture.md"
SOURCES = ROOT / "src" / "walflow"

_NAMED = re.compile(r"`([\w/]+\.py)`(?:,\s+`([\w.]+)`)?")
_STEP = re.compile(r"^\d+\. (.*(?:\n   .*)*)", re.MULTILINE)


def _section(heading: str) -> str:
    text = PAGE.read_text(encoding="utf-8")
    assert f"\n## {heading}" in text
    return text.partition(f"\n## {heading}")[2].partition("\n## ")[0]


CHANGE = _section("A change,")
ROW = _section("A row,")
NAMED = [named for way in (CHANGE, ROW) for named in _NAMED.findall(way)]


def test_the_ways_are_short() -> None:
    assert len(_STEP.findall(CHANGE)) <= 15
    assert len(_STEP.findall(ROW)) <= 10


@pytest.mark.parametrize("way", [CHANGE, ROW])
def test_each_step_names_a_file_and_what_it_defines(way: str) -> None:
    steps = _STEP.findall(way)
    assert steps
    for step in steps:
        found = _NAMED.match(step)
        assert found is not None, step
        assert found[2], step


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_what_a_step_names_is_there(file: str, name: str) -> None:
    tree: ast.AST = ast.parse((SOURCES / file).read_text(encoding="utf-8"))
    for part in name.split("."):
        tree = _definition(tree, part)


def _definition(tree: ast.AST, name: str) -> ast.AST:
    for node in ast.iter_child_nodes(tree):
        if (
            isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name == name
        ):
            return node
    raise AssertionError(f"{name} is not defined there")
