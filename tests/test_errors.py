"""Every error can be pickled, told apart by its exit code, and looked up by its name."""

from __future__ import annotations

import pickle
import traceback
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


@pytest.mark.parametrize("cls", ALL)
def test_a_traceback_shows_what_to_do(cls: type[WalflowError]) -> None:
    error = cls("the cause", hint="what to do")
    assert "".join(traceback.format_exception_only(error)).endswith(
        f"{cls.__name__}: the cause\nWhat to do: what to do\n"
    )
    # Pickled twice, as from a worker to an executor to the driver, it is still there once.
    back = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(error))))
    assert back.__notes__ == ["What to do: what to do"]


def test_the_note_follows_the_hint_and_leaves_others_alone() -> None:
    error = errors.DiskFull("full")
    error.add_note("mine")
    error.hint = "buy a disk"
    assert sorted(error.__notes__) == ["What to do: buy a disk", "mine"]
    error.hint = ""
    assert error.__notes__ == ["mine"]
    assert "__notes__" not in vars(errors.DiskFull("full", hint=""))


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("the disk is full", "The disk is full"),
        ("no connection: refused", "No connection: refused"),
        ("re-reading failed", "Re-reading failed"),
        ("postgresql://db/shop is not there", "postgresql://db/shop is not there"),
        ("public.customers: locked", "public.customers: locked"),
        ("state.db is damaged", "state.db is damaged"),
        ("source.uri is not set", "source.uri is not set"),
        ("orders_2024 is locked", "orders_2024 is locked"),
        ("orders: locked", "orders: locked"),
        ("iceberg:///lake cannot be read", "iceberg:///lake cannot be read"),
        ("/data cannot be read", "/data cannot be read"),
        ("'x' is unknown", "'x' is unknown"),
        ("", ""),
    ],
)
def test_names_keep_their_letters_where_a_sentence_begins_with_one(
    message: str, sentence: str
) -> None:
    assert WalflowError(message).sentence == sentence
