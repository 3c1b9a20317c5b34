"""How Postgres and Spark each write a value as the same text, type by type."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Form", "array_of", "form_of", "quoted_for_spark"]

# The rules for what types cannot hold, as docs/decisions/0002-types.md has them.
_FIRST, _LAST = "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"


def quoted_for_spark(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True, slots=True)
class Form:
    """SQL in which ``{}`` stands for the value."""

    postgres: str
    """The held value as text; NULL if the destination's column must be NULL."""
    spark: str
    odd: str = "false"
    """Whether, in Postgres, the value is one that the destination's type cannot hold."""

    def postgres_held(self, value: str) -> str:
        return self.postgres.replace("{}", value)

    def postgres_odd(self, value: str) -> str:
        return self.odd.replace("{}", value)

    def spark_held(self, value: str) -> str:
        return self.spark.replace("{}", value)


_TEXT = Form("concat({})", "cast({} AS string)")
_MOMENT = "to_char({}, 'YYYY-MM-DD HH24:MI:SS.US')"
_FLOAT = Form(
    # Bit by bit: the two write floats in different ways.
    "('x' || encode(float8send(({})::float8), 'hex'))::bit(64)::bigint::text",
    "CASE WHEN {} IS NOT NULL"
    " THEN reflect('java.lang.Double', 'doubleToLongBits', cast({} AS double)) END",
)

_FORMS = {
    "bool": Form("({})::text", "cast({} AS string)"),
    "bytea": Form("encode({}, 'hex')", "lower(hex({}))"),
    "float4": _FLOAT,
    "float8": _FLOAT,
    "date": Form(
        f"to_char(least(greatest({{}}, date '{_FIRST[:10]}'), date '{_LAST[:10]}'), 'YYYY-MM-DD')",
        "cast({} AS string)",
        odd=f"{{}} NOT BETWEEN date '{_FIRST[:10]}' AND date '{_LAST[:10]}'",
    ),
    "timestamp": Form(
        _MOMENT.replace("{}", f"least(greatest({{}}, timestamp '{_FIRST}'), timestamp '{_LAST}')"),
        "date_format({}, 'yyyy-MM-dd HH:mm:ss.SSSSSS')",
        odd=f"{{}} NOT BETWEEN timestamp '{_FIRST}' AND timestamp '{_LAST}'",
    ),
    "timestamptz": Form(
        _MOMENT.replace(
            "{}",
            f"least(greatest({{}}, timestamptz '{_FIRST}+00'), timestamptz '{_LAST}+00')"
            " AT TIME ZONE 'UTC'",
        ),
        "date_format({}, 'yyyy-MM-dd HH:mm:ss.SSSSSS')",
        odd=f"{{}} NOT BETWEEN timestamptz '{_FIRST}+00' AND timestamptz '{_LAST}+00'",
    ),
}

# Of decimal(38,18), the default for numeric without precision.
_ODD_NUMERIC = "({} IN ('NaN', 'Infinity', '-Infinity') OR abs({}) >= 1e20 OR {} <> round({}, 18))"


def form_of(type_name: str, element: str | None = None, modifier: int = -1) -> Form:
    """The form for a type by its name in pg_type; for arrays also the element's."""
    if element is not None:
        return array_of(form_of(element, None, modifier))
    if type_name == "numeric":
        odd = "({} = 'NaN')" if modifier >= 0 else _ODD_NUMERIC
        overflow = "{}" if modifier >= 0 else "({})::numeric(38,18)"
        return Form(f"CASE WHEN NOT {odd} THEN ({overflow})::text END", "cast({} AS string)", odd)
    return _FORMS.get(type_name, _TEXT)


def array_of(element: Form) -> Form:
    """Each element's text with its length before it, so that no text can look like two."""
    held, odd = element.postgres_held("e"), element.postgres_odd("e")
    return Form(
        "CASE WHEN {} IS NOT NULL THEN (SELECT coalesce(string_agg("
        f"CASE WHEN e IS NULL OR {held} IS NULL THEN 'N' ELSE length({held}) || ':' || {held} END,"
        " ',' ORDER BY n), '') FROM unnest({}) WITH ORDINALITY AS elements(e, n)) END",
        f"array_join(transform({{}}, e -> coalesce("
        f"concat(length({element.spark_held('e')}), ':', {element.spark_held('e')}), 'N')), ',')",
        "(coalesce(array_ndims({}) > 1 OR array_lower({}, 1) <> 1, false)"
        f" OR EXISTS (SELECT FROM unnest({{}}) AS elements(e) WHERE {odd}))",
    )
