"""Every error can be pickled, told apart by its exit code, and looked up by its name."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from walflow import errors
from walflow.errors import ErrorKind, WalflowError


def _tree(cls: type[WalflowError]) -> Iterator[type[WalflowError]]:
    for child in cls.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from _tree(child)


ALL = sorted(set(_tree(WalflowError)), key=lambda cls: cls.__name__)


@pytest.mark.parametrize("cls", ALL)
def test_survives_pickling(cls: type[WalflowError]) -> None:
    back = pickle.loads(pickle.dumps(cls("the cause", hint="what to do")))
    assert type(back) is cls
    assert (back.message, back.hint, str(back)) == ("the cause", "what to do", "the cause")


@pytest.mark.parametrize("cls", ALL)
def test_default_hint_survives_pickling(cls: type[WalflowError]) -> None:
    back = pickle.loads(pickle.dumps(cls("the cause")))
    assert back.hint == cls.default_hint


@pytest.mark.parametrize("cls", ALL)
def test_is_described(cls: type[WalflowError]) -> None:
    assert cls.__doc__ is not None
    assert cls.__doc__ != WalflowError.__doc__
    assert isinstance(cls.kind, ErrorKind)
    assert isinstance(cls.retry, bool)
    assert cls("x").code == cls.__name__


def test_exit_codes_are_distinct_and_fit_a_process() -> None:
    codes = [cls.exit_code for cls in ALL]
    assert sorted(codes) == sorted(set(codes))
    # Above 125 the shell gives codes meanings of its own.
    assert all(1 <= code <= 125 for code in codes)


def test_all_are_public() -> None:
    assert {cls.__name__ for cls in ALL} <= set(errors.__all__)


def test_an_empty_hint_is_kept() -> None:
    assert errors.DiskFull("full", hint="").hint == ""
