"""A disk that refuses the journal's record, or even to take it back; an interrupt in between."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.changelog.rows import START, files_in_log, files_on_disk, open_log, read, seal_rows
from walflow.changelog import ChangeLog
from walflow.errors import DiskFull, LogError
from walflow.model import Lsn


def fail_on_journal(monkeypatch: pytest.MonkeyPatch, error: BaseException, *calls: str) -> None:
    """The calls raise for the journal's file only, after they have done their work."""
    for name in calls:
        real = getattr(os, name)

        def failing(descriptor: int, *rest: int, real: object = real) -> None:
            assert callable(real)
            real(descriptor, *rest)
            if Path(f"/proc/self/fd/{descriptor}").readlink().suffix == ".jsonl":
                raise error

        monkeypatch.setattr(os, name, failing)


def test_a_file_that_fails_in_the_background_fails_the_seal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "log"
    log = open_log(folder, file_bytes=1, buffer_bytes=4)
    real = os.fsync

    def failing(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().suffix == ".parquet":
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing)
        with pytest.raises(DiskFull):
            seal_rows(log, 1100, {1: 2})
    assert files_on_disk(folder) == set()
    seal_rows(log, 1100, {1: 2})
    check_and_reopen(log, folder, [1100])


def check_and_reopen(log: ChangeLog, folder: Path, ends: list[int]) -> None:
    for _ in range(2):
        assert [int(segment.span.upto) for segment in log.segments(START)] == ends
        assert len(read(log, log.segments(START))[1, 0]) == 2 * len(ends)
        log.close()
        log = open_log(folder)
    assert files_on_disk(folder) == files_in_log(log)
    log.close()


@pytest.mark.parametrize("calls", [("fsync",), ("fsync", "ftruncate")])
def test_a_record_that_fails_can_be_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: tuple[str, ...]
) -> None:
    folder = tmp_path / "log"
    log = open_log(folder)
    seal_rows(log, 1100, {1: 2})
    with monkeypatch.context() as failing:
        fail_on_journal(failing, OSError(errno.EIO, "Input/output error"), *calls)
        with pytest.raises(LogError, match="Input/output error"):
            seal_rows(log, 1200, {1: 2})
    assert log.end == Lsn(1100)
    seal_rows(log, 1200, {1: 2})
    check_and_reopen(log, folder, [1100, 1200])


def test_a_record_that_could_not_be_taken_back_has_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends with a record that it does not know to be durable: it may be."""
    folder = tmp_path / "log"
    log = open_log(folder)
    seal_rows(log, 1100, {1: 2})
    with monkeypatch.context() as failing:
        fail_on_journal(failing, OSError(errno.EIO, "Input/output error"), "fsync")
        real = os.ftruncate

        def refusing(descriptor: int, length: int) -> None:
            if length:
                raise OSError(errno.EIO, "Input/output error")
            real(descriptor, length)

        failing.setattr(os, "ftruncate", refusing)
        with pytest.raises(LogError):
            seal_rows(log, 1200, {1: 2})
        assert log.end == Lsn(1100)
        log.close()
    check_and_reopen(open_log(folder), folder, [1100, 1200])


def test_an_interrupt_while_the_record_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "log"
    log = open_log(folder)
    seal_rows(log, 1100, {1: 2})
    with monkeypatch.context() as failing:
        fail_on_journal(failing, KeyboardInterrupt(), "write")
        with pytest.raises(KeyboardInterrupt):
            seal_rows(log, 1200, {1: 2})
    check_and_reopen(log, folder, [1100])
