"""Commands in texts get what finds the pipeline."""

from __future__ import annotations

import pytest

from walflow.model import TableName
from walflow.pasting import command_for, with_options

OPTIONS = "--file 'my shop.yaml'"


@pytest.mark.parametrize(
    "table",
    [TableName("public", "t"), TableName("a b", "c.d"), TableName("-x", "it's `b`")],
    ids=str,
)
@pytest.mark.parametrize("verb", ["retry", "rollback", "resync"])
def test_a_command_for_a_table(table: TableName, verb: str) -> None:
    text = f"Gone: `{command_for(verb, table)}`, or else see `walflow status`."
    assert with_options(text, "") == text
    assert with_options(text, OPTIONS) == (
        f"Gone: `{command_for(verb, table, OPTIONS)}`, or else see `walflow status {OPTIONS}`."
    )


@pytest.mark.parametrize(
    "text",
    ["Set `source.slot`.", "as for `walflow run`: with", "walflow status", "`walflow retryer`"],
)
def test_other_texts_stay(text: str) -> None:
    assert with_options(text, OPTIONS) == text
