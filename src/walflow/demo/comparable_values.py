"""SQL with which Postgres and Spark write a value as the same text, for each type."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ComparableText", "comparable_array", "comparable_text", "quoted_for_spark"]

# The rules of docs/decisions/0002-types.md for values that types cannot hold.
_FIRST, _LAST = "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"


def quoted_for_spark(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True, slots=True)
class ComparableText:
    """SQL for both sides, in which ``{}`` stands for the value."""

    postgres: str
    """The value that the destination holds, as text; NULL if its column must be NULL."""
    spark: str
    odd: str = "false"
    """Whether the destination's type cannot hold the value, by SQL of Postgres."""

    def postgres_held(self, value: str) -> str:
        return self.postgres.replace("{}", value)

    def postgres_odd(self, value: str) -> str:
        return self.odd.replace("{}", value)

    def spark_held(self, value: str) -> str:
        return self.spark.replace("{}", value)


_TEXT = ComparableText("concat({})", "cast({} AS string)")
_MOMENT = "to_char({}, 'YYYY-MM-DD HH24:MI:SS.US')"
_FLOAT = ComparableText(
    # The bits, because the two print floats differently.
    "('x' || encode(float8send(({})::float8), 'hex'))::bit(64)::bigint::text",
    "CASE WHEN {} IS NOT NULL"
    " THEN reflect('java.lang.Double', 'doubleToLongBits', cast({} AS double)) END",
)

_TEXTS = {
    "bool": ComparableText("({})::text", "cast({} AS string)"),
    "bytea": ComparableText("encode({}, 'hex')", "lower(hex({}))"),
    "float4": _FLOAT,
    "float8": _FLOAT,
    "date": ComparableText(
        f"to_char(least(greatest({{}}, date '{_FIRST[:10]}'), date '{_LAST[:10]}'), 'YYYY-MM-DD')",
        "cast({} AS string)",
        odd=f"{{}} NOT BETWEEN date '{_FIRST[:10]}' AND date '{_LAST[:10]}'",
    ),
    "timestamp": ComparableText(
        _MOMENT.replace("{}", f"least(greatest({{}}, timestamp '{_FIRST}'), timestamp '{_LAST}')"),
        "date_format({}, 'yyyy-MM-dd HH:mm:ss.SSSSSS')",
        odd=f"{{}} NOT BETWEEN timestamp '{_FIRST}' AND timestamp '{_LAST}'",
    ),
    "timestamptz": ComparableText(
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


def comparable_text(
    type_name: str, element: str | None = None, modifier: int = -1
) -> ComparableText:
    """The SQL for a type by its name in pg_type; for arrays also the element's."""
    if element is not None:
        return comparable_array(comparable_text(element, None, modifier))
    if type_name == "numeric":
        odd = "({} = 'NaN')" if modifier >= 0 else _ODD_NUMERIC
        value = "{}" if modifier >= 0 else "({})::numeric(38,18)"
        return ComparableText(
            f"CASE WHEN NOT {odd} THEN ({value})::text END", "cast({} AS string)", odd
        )
    return _TEXTS.get(type_name, _TEXT)


def comparable_array(element: ComparableText) -> ComparableText:
    """Each element's text behind its length, so that no text looks like two elements."""
    held, odd = element.postgres_held("e"), element.postgres_odd("e")
    return ComparableText(
        "CASE WHEN {} IS NOT NULL THEN (SELECT coalesce(string_agg("
        f"CASE WHEN e IS NULL OR {held} IS NULL THEN 'N' ELSE length({held}) || ':' || {held} END,"
        " ',' ORDER BY n), '') FROM unnest({}) WITH ORDINALITY AS elements(e, n)) END",
        f"array_join(transform({{}}, e -> coalesce("
        f"concat(length({element.spark_held('e')}), ':', {element.spark_held('e')}), 'N')), ',')",
        "(coalesce(array_ndims({}) > 1 OR array_lower({}, 1) <> 1, false)"
        f" OR EXISTS (SELECT FROM unnest({{}}) AS elements(e) WHERE {odd}))",
    )
