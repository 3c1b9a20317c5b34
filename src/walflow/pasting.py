"""Commands in messages, for pasting.

Hints name commands in backticks (`walflow resync public.orders`). Code that writes a hint does not
have the options that find the pipeline. Code that shows it has them, and adds them.
"""

from __future__ import annotations

import re
import shlex

from walflow.model import TableName

__all__ = ["command_for", "with_options"]

# The commands that take the options. Quoted text, as shlex writes it, may contain backticks.
_WORDS = r"""(?:"'"|'[^']*'|[^`'])*"""
_COMMAND = re.compile(rf"`(walflow (?:status|retry|rollback|resync)\b{_WORDS})`")


def command_for(verb: str, table: TableName, options: str = "") -> str:
    """The command for a table, with the options that find the pipeline."""
    is_plain = not re.search(r'^-|[".]', table.schema) and not re.search(r'[".]', table.name)
    spelled = str(table) if is_plain else table.quoted
    return " ".join(filter(None, ("walflow", verb, shlex.quote(spelled), options)))


def with_options(text: str, options: str) -> str:
    """The text, with the options added to each command that needs them to find the pipeline."""
    return _COMMAND.sub(lambda found: f"`{found[1]} {options}`", text) if options else text
