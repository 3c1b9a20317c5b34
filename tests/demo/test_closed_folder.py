"""Root's folders are closed to others, and so to the account that Postgres runs as."""

from __future__ import annotations

import os
import shlex

import pytest

from tests.cli.commands import Room
from walflow.testing.accounts import check_reachable, may_enter, server_account

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root's Postgres runs as another account; run the tests as root"
)


def test_the_demo_says_which_folder_is_closed_and_how_to_open_it(room: Room) -> None:
    closed = room.path / "root's own"
    closed.mkdir(mode=0o700)
    ran = room.run("demo", "--seconds", "1", "--folder", closed / "lakes" / "mine", seconds=400)
    assert ran.returncode == 2, ran.stderr
    assert "Traceback" not in ran.stderr
    told = " ".join(ran.stderr.split())
    assert f"may not enter {closed}," in told
    assert f"chmod o+x {shlex.quote(str(closed))})" in told
    assert list((closed / "lakes").iterdir()) == []


def test_what_the_hint_says_opens_it(room: Room) -> None:
    account = server_account()
    assert account is not None
    folder = room.path / "closed" / "inner"
    folder.mkdir(parents=True)
    folder.parent.chmod(0o700)
    assert not may_enter(account, folder)
    folder.parent.chmod(0o701)
    check_reachable(account, folder)
