"""The page of a table's phases, with the moves that the pipeline allows."""

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
stored before walflow acts on it, so that a start after a crash resumes from it.
[Phases](../explanation/phases.md) explains what they are for.
"""

_RETRIES = """\
## When a table is set aside

The state of a table in `Errored` has the error, the phase in which it failed, and whether it is
tried again:
"""


def phases_page() -> str:
    told = attribute_texts(Phase)
    lines = [_INTRODUCTION]
    lines += table(
        ["Phase", "What happens", "Changes are applied", "Next phases"],
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
    lines += ["A retry resumes the table in this phase:", ""]
    lines += table(
        ["Failed in", "Resumes in"],
        (
            [code(phase.value), code(resumed(phase).value)]
            for phase in Phase
            if phase is not Phase.ERRORED
        ),
    )
    return "\n".join(lines)


def attribute_texts(owner: type) -> dict[str, str]:
    """The docstrings below a class's attributes."""
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
