"""The way from one form of a table to another, and where there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from walflow.evolution import Evolution, NotFollowed, evolution
from walflow.model import Column, PgType, ReplicaIdentity, TableName, TableSchema

INT = PgType("integer", 23, 23)
BIGINT = PgType("bigint", 20, 20)
TEXT = PgType("text", 25, 25)
SPARK = {INT.oid: "int", BIGINT.oid: "bigint", TEXT.oid: "string"}

FILES = frozenset({100})


def column(number: int, name: str, type_: PgType = TEXT, **more: object) -> Column:
    made = Column(name, type_, SPARK[type_.oid], position=number)
    return replace(made, **more)  # type: ignore[arg-type]


def form(*columns: Column, key: tuple[str, ...] = ("id",), **more: object) -> TableSchema:
    made = TableSchema(7, TableName("s", "t"), columns, key, filenodes=FILES)
    return replace(made, **more)  # type: ignore[arg-type]


ID, A, B = column(1, "id", INT), column(2, "a"), column(3, "b")


def way(before: TableSchema, after: TableSchema, *, trust: bool = False) -> Evolution:
    return evolution(before, after, trust_rewrites=trust)


def refused(before: TableSchema, after: TableSchema, *, trust: bool = False) -> str:
    with pytest.raises(NotFollowed) as raised:
        way(before, after, trust=trust)
    return raised.value.reason


def test_a_form_leads_to_itself_under_any_name() -> None:
    before = form(ID, A)
    same = way(before, replace(before, name=TableName("s", "renamed"), filenodes=frozenset({5})))
    assert not same.changes_columns
    assert not same.key_changed
    with pytest.raises(ValueError, match="are two"):
        way(before, replace(before, oid=8))


def test_numbers_settle_what_became_of_columns() -> None:
    swapped = way(form(ID, A, B), form(ID, replace(A, name="b"), replace(B, name="a")))
    assert swapped.renamed == ((A, replace(A, name="b")), (B, replace(B, name="a")))
    assert not swapped.added
    assert not swapped.dropped

    anew = column(4, "b", INT)
    remade = way(form(ID, A, B), form(ID, A, anew))
    assert remade.dropped == (B,)
    assert remade.added == (anew,)
    assert not remade.renamed
    assert remade.changes_columns

    # Over several forms at once.
    story = way(form(ID, A, B), form(ID, replace(B, name="a"), column(5, "b")))
    assert story.dropped == (A,)
    assert story.renamed == ((B, replace(B, name="a")),)
    assert [c.position for c in story.added] == [5]


def test_what_is_in_an_added_column_must_be_known() -> None:
    new = column(3, "b")
    before = form(ID, A)
    grown = frozenset({100, 200})
    assert way(before, form(ID, A, new)).added == (new,)
    assert way(before, form(ID, A, new, filenodes=grown)).added == (new,)
    for filenodes in (frozenset({200}), frozenset[int]()):
        assert "column b was added" in refused(before, form(ID, A, new, filenodes=filenodes))
    assert "column b was added" in refused(replace(before, filenodes=frozenset()), form(ID, A, new))

    filled = replace(new, missing="x")
    assert way(before, form(ID, A, filled, filenodes=frozenset({200}))).added == (filled,)
    assert way(replace(before, filenodes=frozenset()), form(ID, A, filled)).added == (filled,)
    unknown = replace(filled, missing_known=False)
    assert "cannot be told what rows" in refused(before, form(ID, A, unknown))


def test_a_column_that_was_merely_not_published_is_not_added() -> None:
    assert "not published" in refused(form(ID, B), form(ID, A, B))
    assert "not published" in refused(form(ID, A, newest=3), form(ID, A, B))


def test_columns_without_a_number_cannot_be_followed() -> None:
    lost = replace(A, position=0)
    assert refused(form(ID, lost), form(ID, A)) == "it cannot be told which column a is"
    assert refused(form(ID, A), form(ID, lost)) == "it cannot be told which column a is"


def test_keys_are_compared_by_number() -> None:
    before = form(ID, A, B)
    assert not way(before, form(ID, A, B, replica_identity=ReplicaIdentity.FULL)).key_changed
    assert not way(before, form(replace(ID, name="no"), A, B, key=("no",))).key_changed
    wide = column(1, "id", BIGINT)
    assert not way(before, form(wide, A, B), trust=True).key_changed
    assert way(before, form(ID, A, B, key=("id", "a"))).key_changed
    assert way(before, form(ID, A, B, key=("a",))).key_changed
    assert way(before, form(ID, A, B, key=())).key_changed
    assert way(form(ID, A, B, key=()), before).key_changed
    assert not way(form(ID, key=()), form(ID, A, key=())).key_changed
    swapped = form(replace(ID, name="a"), replace(A, name="id"), B)
    assert way(before, swapped).key_changed


def test_rewrites_are_followed_if_they_are_trusted() -> None:
    before, after = form(ID, A), form(column(1, "number", BIGINT), A, key=("number",))
    reason = refused(before, replace(after, filenodes=frozenset({200})))
    assert "column number changed from integer to bigint" in reason
    trusted = way(before, replace(after, filenodes=frozenset({200})), trust=True)
    assert trusted.widened == trusted.renamed == ((ID, after.columns[0]),)
    assert "from bigint to integer" in refused(after, before, trust=True)
    assert "from integer to text" in refused(before, form(column(1, "id", TEXT), A), trust=True)


def test_a_renamed_type_is_the_same_one() -> None:
    other = replace(A, type=replace(TEXT, name="texts"))
    assert not way(form(ID, A), form(ID, other, filenodes=frozenset({200}))).changes_columns


def test_another_setting_of_types_is_not_followed() -> None:
    numeric = PgType("numeric", 1700, 1700)
    before = replace(A, type=numeric, spark_type="decimal(10,2)")
    after = replace(before, spark_type="decimal(38,2)")
    assert refused(form(before), form(after), trust=True).endswith("and was decimal(10,2)")
