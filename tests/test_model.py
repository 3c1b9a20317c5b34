from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walflow.model import (
    Column,
    Lsn,
    PgType,
    ReplicaIdentity,
    Span,
    TableName,
    TableSchema,
    quote_identifier,
)
from walflow.serialization import from_json, to_json

INT8 = PgType("bigint", 20, 20)
TEXT = PgType("text", 25, 25)
TAGS = PgType("text[]", 1009, 1009, element=TEXT)


def orders(**changes: object) -> TableSchema:
    schema = TableSchema(
        oid=16400,
        name=TableName("shop", "orders"),
        columns=(
            Column("id", INT8, "bigint", nullable=False, attnum=1),
            Column("note", TEXT, "string", attnum=2),
            Column("tags", TAGS, "array<string>", attnum=4),
        ),
        key=("id",),
        version=Lsn.parse("16/B374D848"),
    )
    return replace(schema, **changes)  # type: ignore[arg-type]


class TestLsn:
    def test_reads_and_prints_what_postgres_prints(self) -> None:
        lsn = Lsn.parse("16/B374D848")
        assert lsn == 0x16B374D848
        assert (str(lsn), f"{lsn}", repr(lsn)) == ("16/B374D848",) * 2 + ("Lsn(16/B374D848)",)

    @given(st.integers(0, 2**64 - 1))
    def test_round_trip(self, position: int) -> None:
        assert Lsn.parse(str(Lsn(position))) == position

    def test_orders_as_a_number_not_as_text(self) -> None:
        assert Lsn.parse("9/FF") < Lsn.parse("10/0")

    @pytest.mark.parametrize("text", ["", "16", "16-B3", "x/y", "/", "1/"])
    def test_rejects_other_text(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"log position|invalid literal"):
            Lsn.parse(text)

    def test_survives_pickling(self) -> None:
        back = pickle.loads(pickle.dumps(Lsn(7)))
        assert type(back) is Lsn
        assert back == 7


class TestTableName:
    def test_quotes_what_needs_it(self) -> None:
        assert TableName("a.b", 'Od"d').quoted == '"a.b"."Od""d"'
        assert quote_identifier("select") == '"select"'

    def test_names_in_different_schemas_differ(self) -> None:
        assert TableName("a", "t") != TableName("b", "t")
        assert min(TableName("b", "a"), TableName("a", "b")).schema == "a"

    def test_prints_plainly(self) -> None:
        assert str(TableName("shop", "orders")) == "shop.orders"


class TestTableSchema:
    @pytest.mark.parametrize("identity", list(ReplicaIdentity))
    def test_round_trip_through_json(self, identity: ReplicaIdentity) -> None:
        schema = orders(replica_identity=identity)
        back = from_json(TableSchema, to_json(schema))
        assert back == schema
        assert type(back.version) is Lsn
        assert back.columns[2].type.element == TEXT

    def test_survives_pickling_and_hashing(self) -> None:
        back = pickle.loads(pickle.dumps(orders()))
        assert back == orders()
        assert hash(back) == hash(orders())

    def test_identity_is_the_key_or_all_columns(self) -> None:
        assert [column.name for column in orders().identity_columns] == ["id"]
        assert orders(key=()).identity_columns == orders().columns

    def test_finds_columns_by_name(self) -> None:
        assert orders().column("tags").attnum == 4
        assert orders().column_names == ("id", "note", "tags")

    def test_same_form_looks_past_the_version_only(self) -> None:
        assert orders().same_schema(orders(version=Lsn(0)))
        assert not orders().same_schema(orders(columns=orders().columns[:2]))
        assert not orders().same_schema(orders(key=()))


class TestSpan:
    def test_prints_as_half_open(self) -> None:
        assert str(Span(Lsn(0), Lsn(255))) == "(0/0, 0/FF]"

    def test_may_be_empty_but_not_reversed(self) -> None:
        Span(Lsn(5), Lsn(5))
        with pytest.raises(ValueError, match="cannot end"):
            Span(Lsn(6), Lsn(5))
