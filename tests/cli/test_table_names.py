"""Tables as users write them."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import pytest

from walflow.cli.table_names import find_table, read_name
from walflow.errors import UnknownTable
from walflow.model import TableName
from walflow.pasting import command_for

KNOWN = {
    TableName("public", "orders"),
    TableName("shop", "orders"),
    TableName("shop", "customers"),
    TableName("My Schema", "Odd.Name"),
    TableName("public", 'say "hi"'),
    TableName("public", "Mixed"),
    TableName("a.b", "c"),
    TableName("a", "b.c"),
    TableName("--a", "it's `b`"),
}
ALIKE = {TableName("my a.b", "c"), TableName("my a", "b.c")}


@pytest.mark.parametrize(
    ("text", "schema", "name"),
    [
        ("orders", "public", "orders"),
        ("shop.orders", "shop", "orders"),
        ('"shop"."orders"', "shop", "orders"),
        ("SHOP.Orders", "shop", "orders"),
        ("Mixed", "public", "Mixed"),
        ('"My Schema"."Odd.Name"', "My Schema", "Odd.Name"),
        ("My Schema.Odd.Name", "My Schema", "Odd.Name"),
        ('"say ""hi"""', "public", 'say "hi"'),
        ('a."b.c"', "a", "b.c"),
    ],
)
def test_names_that_are_understood(text: str, schema: str, name: str) -> None:
    assert find_table(text, KNOWN) == TableName(schema, name)


def test_a_quoted_name_keeps_its_capitals() -> None:
    with pytest.raises(UnknownTable):
        find_table('"SHOP".orders', KNOWN)


def test_two_tables_that_are_spelled_alike_without_quotes() -> None:
    with pytest.raises(UnknownTable, match="several") as raised:
        find_table("a.b.c", KNOWN)
    spelled = raised.value.hint.removeprefix("Name one: ").split(" or ")
    found = {find_table(shlex.split(text)[0], KNOWN) for text in spelled}
    assert found == {TableName("a.b", "c"), TableName("a", "b.c")}


@pytest.mark.parametrize(
    ("text", "closest"),
    [
        ("shop.order", "shop.orders"),
        ("customers", "shop.customers"),
        ("shpo.customers", "shop.customers"),
    ],
)
def test_an_unknown_name_brings_the_closest(text: str, closest: str) -> None:
    with pytest.raises(UnknownTable) as raised:
        find_table(text, KNOWN)
    assert closest in raised.value.hint


def test_a_name_that_is_like_none() -> None:
    with pytest.raises(UnknownTable, match="zzz") as raised:
        find_table("zzz", KNOWN)
    assert "walflow status" in raised.value.hint


@pytest.mark.parametrize("find", [lambda: find_table("my a.b.c", ALIKE), lambda: read_name('my "')])
def test_a_name_keeps_its_letters_where_a_message_begins_with_it(
    find: Callable[[], object],
) -> None:
    with pytest.raises(UnknownTable) as raised:
        find()
    assert raised.value.sentence.startswith("'my ")


@pytest.mark.parametrize("table", sorted(KNOWN), ids=str)
def test_a_pasted_command_means_the_table_that_it_was_made_for(table: TableName) -> None:
    command = command_for("retry", table, "--name shop")
    assert shlex.split(command) == ["walflow", "retry", shlex.split(command)[2], "--name", "shop"]
    assert find_table(shlex.split(command)[2], KNOWN) == table
