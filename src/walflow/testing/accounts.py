"""The account that a server runs as when we are root: Postgres refuses to run as root."""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import subprocess
from pathlib import Path
from typing import Any

from walflow.errors import ConfigError, PostgresMissing

__all__ = ["as_account", "check_reachable", "may_enter", "server_account"]


def server_account() -> pwd.struct_passwd | None:
    """None: our own account."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise PostgresMissing(
        "Postgres does not run as root, and there is no account 'postgres' or 'nobody' for it.",
        hint="Run as an ordinary user.",
    )


def as_account(account: pwd.struct_passwd | None) -> dict[str, Any]:
    """The arguments with which ``subprocess`` runs a program under the account."""
    if account is None:
        return {}
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def may_enter(account: pwd.struct_passwd, path: Path) -> bool:
    """Whether the account may enter the folder, or run the program."""
    tried = subprocess.run(
        ["/usr/bin/env", "test", "-x", path], check=False, cwd="/", **as_account(account)
    )
    return tried.returncode == 0


def check_reachable(account: pwd.struct_passwd | None, folder: Path) -> None:
    """Raise ConfigError, with a hint, if the account cannot enter the folder."""
    if account is None or may_enter(account, folder):
        return
    way = [*reversed(folder.absolute().parents), folder]
    closed = next(step for step in way if not may_enter(account, step))
    raise ConfigError(
        f"Postgres runs as the account '{account.pw_name}', because you are root, and that may not "
        f"enter {closed}, so it cannot have its data in {folder}.",
        hint=f"Let it pass (chmod o+x {shlex.quote(str(closed))}), or choose a folder that is open "
        "to all, such as one in /tmp.",
    )
