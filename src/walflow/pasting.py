"""Commands in texts, to be pasted.

Hints name commands in backticks (`walflow resync public.orders`). Who writes the text does not
know how the reader finds the pipeline; who shows it does, and puts the options in.
"""

from __future__ import annotations

import re
import shlex

from walflow.model import TableName

__all__ = ["command_for", "with_options"]

# Those that take the options. Within quotes, as shlex writes them, there may be backticks.
_WORDS = r"""(?:"'"|'[^']*'|[^`'])*"""
_COMMAND = re.compile(rf"`(walflow (?:status|retry|rollback|resync)\b{_WORDS})`")


def command_for(verb: str, table: TableName, options: str = "") -> str:
    """The command for a table, with the options that find the pipeline."""
    is_plain = not re.search(r'^-|[".]', table.schema) and not re.search(r'[".]', table.name)
    spelled = str(table) if is_plain else table.quoted
    return " ".join(filter(None, ("walflow", verb, shlex.quote(spelled), options)))


def with_options(text: str, options: str) -> str:
    """The text, with the options behind each command that needs them to find the pipeline."""
    return _COMMAND.sub(lambda found: f"`{found[1]} {options}`", text) if options else text
