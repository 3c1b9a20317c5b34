"""The page of a table's phases: the moves are those that the pipeline allows."""

from __future__ import annotations

import ast
import inspect
import textwrap

from tools.docs.markdown import code, said, table
from walflow.model import Phase
from walflow.pipeline.state.phases import FOLLOWED, MOVES, resumed
from walflow.states import RetryKind

__all__ = ["attribute_texts", "phases_page"]

_INTRODUCTION = """\
# Phases

Every table of a pipeline is in one phase. `walflow status` shows it, and since when. A phase is
remembered in the store before it is acted on, so that a start after a crash goes on from it. What
the phases are for is told in [phases](../explanation/phases.md).
"""

_RETRIES = """\
## When a table was set aside

A table in `Errored` remembers what went wrong, in which phase, and whether it is tried again:
"""


def phases_page() -> str:
    told = attribute_texts(Phase)
    lines = [_INTRODUCTION]
    lines += table(
        ["Phase", "What happens", "Changes are applied", "May go on to"],
        (
            [
                code(phase.value),
                told.get(phase.name, ""),
                "yes" if phase in FOLLOWED else "",
                ", ".join(code(after.value) for after in Phase if after in MOVES[phase]),
            ]
            for phase in Phase
        ),
    )
    lines.append(_RETRIES)
    kinds = attribute_texts(RetryKind)
    lines += table(
        ["Retry", "What it means"], ([code(kind.value), kinds[kind.name]] for kind in RetryKind)
    )
    lines += ["After a retry the table goes on where its work can be taken up again:", ""]
    lines += table(
        ["Failed in", "Goes on in"],
        (
            [code(phase.value), code(resumed(phase).value)]
            for phase in Phase
            if phase is not Phase.ERRORED
        ),
    )
    return "\n".join(lines)


def attribute_texts(owner: type) -> dict[str, str]:
    """The texts that stand below a class's attributes."""
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(found, ast.ClassDef)
    told: dict[str, str] = {}
    for one, after in zip(found.body, found.body[1:], strict=False):
        target = one.targets[0] if isinstance(one, ast.Assign) else getattr(one, "target", None)
        if (
            isinstance(target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            told[target.id] = said(str(after.value.value))
    return told
