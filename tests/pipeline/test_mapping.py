"""What the destination calls the source's tables."""

from __future__ import annotations

import pytest

from walflow.config import MappingSettings
from walflow.errors import MappingConflict
from walflow.model import TableName
from walflow.pipeline.mapping import TableMapping, check_apart


def mapped(source: TableName, **settings: object) -> TableName:
    return TableMapping(MappingSettings.model_validate(settings)).destination(source)


def test_schema_and_table_stay_apart_by_default() -> None:
    assert mapped(TableName("a", "t")) == TableName("a", "t")
    assert mapped(TableName("a.b", "c")) != mapped(TableName("a", "b.c"))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("lake.{schema}__{table}", TableName("lake", "sales__orders")),
        ("{schema}_raw.{table}", TableName("sales_raw", "orders")),
        ("one.{table}", TableName("one", "orders")),
    ],
)
def test_templates(template: str, expected: TableName) -> None:
    assert mapped(TableName("sales", "orders"), template=template) == expected


def test_explicit_names_win() -> None:
    names = {"sales.orders": "mart.o"}
    assert mapped(TableName("sales", "orders"), tables=names) == TableName("mart", "o")
    assert mapped(TableName("sales", "other"), tables=names) == TableName("sales", "other")


def test_names_with_dots_can_be_named() -> None:
    assert mapped(TableName("a", "b.c"), tables={"a.b.c": "mart.o"}) == TableName("mart", "o")


def test_explicit_names_of_no_table_are_found() -> None:
    settings = MappingSettings(tables={"sales.orders": "mart.o", "Sales.items": "mart.i"})
    names = [TableName("sales", "orders"), TableName("sales", "items")]
    assert TableMapping(settings).unused(names) == {"Sales.items"}
    assert TableMapping(settings).unused([*names, TableName("Sales", "items")]) == set()


def test_two_sources_on_one_name_are_refused_with_both_names() -> None:
    one, other = TableName("a", "t"), TableName("b", "t")
    check_apart({one: one, other: other})
    with pytest.raises(MappingConflict, match=r"a\.t and b\.t .* lake\.t"):
        check_apart({one: TableName("lake", "t"), other: TableName("lake", "t")})
