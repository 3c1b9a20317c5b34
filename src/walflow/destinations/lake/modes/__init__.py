"""What becomes of changes in a table, by its mode. Each mode is one module of the same shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from walflow.config.settings import Mode
from walflow.destinations.lake.format import Constant
from walflow.destinations.lake.forms import StoredForm
from walflow.destinations.lake.modes import mirror
from walflow.destinations.lake.rounds import Round

__all__ = ["MODES", "ModeWriter"]


class ModeWriter(Protocol):
    def copied(self, form: StoredForm, constants: Mapping[str, Constant]) -> Mapping[str, Constant]:
        """What our columns have in rows of a copy, by name; ``constants``: the metadata's."""

    def apply(self, round: Round) -> StoredForm:
        """Write the changes, in exactly one commit; the table's form after it (it may have got
        the column of exact texts)."""


MODES: Mapping[Mode, ModeWriter] = {"mirror": mirror}
