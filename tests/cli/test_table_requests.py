"""``walflow retry``, ``rollback``, ``resync``: asked through a store on the disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.stored import HOLDER, opened, put_shop, put_table, run_it
from walflow.cli import _exit_code
from walflow.model import Phase, TableName
from walflow.stores.base import Action, Request, Store

PATIENT = ("--wait", "400")
REFUSAL = "Not set aside: `walflow resync public.orders`"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def store(log: Path) -> Iterator[Store]:
    with opened(log) as made:
        put_shop(made)
        yield made


def ask(log: Path, verb: str, *arguments: str, code: int = 0) -> None:
    assert _exit_code([verb, *arguments, "--name", "shop", "--log", str(log)]) == code


def test_the_settings_file_may_stand_among_the_tables(
    store: Store, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(f"name: shop\nlog: {{folder: {log}}}\n")
    assert _exit_code(["retry", str(file), "timed"]) == 0
    assert _exit_code(["retry", "timed", "--file", str(file)]) == 0
    assert "public.timed: retry requested" in capsys.readouterr().out
    assert _exit_code(["retry", str(file), "timed", "--file", str(file)]) == 2
    assert _exit_code(["retry", str(tmp_path / "none.yaml"), "timed"]) == 2
    assert "none.yaml cannot be read" in capsys.readouterr().err
    # A table of such a name.
    put_table(store, 9, "public.yaml", Phase.READY)
    assert _exit_code(["retry", str(file), '"public"."yaml"']) == 0


@contextmanager
def answering(store: Store, answer: Callable[[Request], tuple[str, bool]]) -> Iterator[None]:
    """The other side: what a running pipeline does with requests."""
    done = threading.Event()

    def work() -> None:
        while not done.wait(0.05):
            for request in store.open_requests():
                outcome, refused = answer(request)
                store.finish_request(request.id, outcome, refused=refused)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("verb", ["retry", "rollback", "resync"])
def test_a_running_pipeline_does_it(
    store: Store, log: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    run_it(store)
    seen: list[Request] = []

    def answer(request: Request) -> tuple[str, bool]:
        seen.append(request)
        return f"{request.table} is in {request.action.value} now", False

    with answering(store, answer):
        ask(log, verb, "timed", "public.manual", *PATIENT)
    assert [(request.table.name, request.action) for request in seen] == [
        ("timed", Action(verb)),
        ("manual", Action(verb)),
    ]
    assert capsys.readouterr().out.splitlines() == [
        f"public.timed is in {verb} now",
        f"public.manual is in {verb} now",
    ]


def test_a_refusal_is_an_error_with_its_words(
    store: Store, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_it(store)

    def answer(request: Request) -> tuple[str, bool]:
        is_set_aside = request.table.name == "timed"
        return ("Tried again.", False) if is_set_aside else (REFUSAL, True)

    with answering(store, answer):
        ask(log, "retry", "timed", "orders", *PATIENT, code=77)
    shown = capsys.readouterr()
    assert shown.out == "Tried again.\n"
    find = f"--name shop --log {log}"
    words = " ".join(shown.err.split())
    assert f"The pipeline refused. Not set aside: `walflow resync public.orders {find}`" in words
    assert f"`walflow status {find}` shows the state of the tables." in words


def test_all_that_are_set_aside(
    store: Store, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(log, "retry", "--all-errored")
    assert {request.table.name for request in store.open_requests()} == {"timed", "manual", "final"}
    assert capsys.readouterr().out.count("done at its next start") == 3


def test_none_is_set_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.cli.stored import an_error, put_table
    from walflow.model import Phase
    from walflow.states import RetryKind

    with opened(tmp_path / "log") as store:
        put_table(store, 1, "public.orders", Phase.READY)
        ask(tmp_path / "log", "retry", "--all-errored")
        assert store.open_requests() == []
        assert capsys.readouterr().out == "No table is set aside.\n"
        error = an_error(RetryKind.TIMED)
        put_table(store, 2, "public.tried", Phase.CATCHUP, attempts=1, error=error)
        ask(tmp_path / "log", "retry", "--all-errored")
        told = capsys.readouterr().out
        assert told == "No table is set aside; tried again at the next start: public.tried.\n"
        run_it(store)
        ask(tmp_path / "log", "retry", "--all-errored")
        told = capsys.readouterr().out
        assert told == "No table is set aside; being tried again just now: public.tried.\n"
        assert store.open_requests() == []


def test_a_pipeline_that_does_not_run_does_it_later_and_once(
    store: Store, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        ask(log, "resync", "sales.final")
    waiting = store.open_requests()
    assert [(request.table, request.action) for request in waiting] == [
        (TableName("sales", "final"), Action.RESYNC)
    ]
    out = capsys.readouterr().out
    assert out.count("the pipeline does not run: done at its next start") == 2


def test_a_pipeline_that_does_not_answer_in_time(
    store: Store, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_it(store)
    ask(log, "retry", "timed", "--wait", "0.3")
    shown = capsys.readouterr().out
    assert f"no answer within 0.3 s, see `walflow status --name shop --log {log}`" in shown
    assert len(store.open_requests()) == 1


def test_a_pipeline_that_ends_while_it_is_waited_for(
    store: Store, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_it(store)
    release = threading.Timer(0.5, store.release_lease, [HOLDER])
    release.start()
    ask(log, "retry", "timed", *PATIENT)
    release.join()
    assert "done at its next start" in capsys.readouterr().out


def test_not_waiting(store: Store, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_it(store)
    ask(log, "rollback", "timed", "--no-wait")
    assert capsys.readouterr().out == "public.timed: rollback requested\n"


def test_a_table_that_the_pipeline_does_not_have(
    store: Store, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(log, "retry", "timed", "public.ordres", code=75)
    assert "Did you mean public.orders?" in capsys.readouterr().err
    assert store.open_requests() == [], "all are known, or none is asked for"


def test_wrong_usage(store: Store, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask(log, "retry", code=2)
    assert "walflow status" in capsys.readouterr().err
    ask(log, "retry", "timed", "--all-errored", code=2)
    assert store.open_requests() == []


def test_a_store_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask(tmp_path / "nowhere", "retry", "t", code=2)
    assert "state.db" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()
