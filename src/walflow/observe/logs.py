"""Structured logs: for people on a terminal, or one JSON object a line; never with a secret.

Modules log with ``structlog.get_logger(__name__)`` and say what they know as keywords::

    log = structlog.get_logger(__name__)
    log.info("segment sealed", upto=str(upto), rows=rows)
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any, TextIO

import structlog
from pydantic import SecretBytes, SecretStr
from structlog.typing import EventDict, Processor, WrappedLogger

from walflow.errors import WalflowError
from walflow.redaction import MASK, is_secret_name, redacted

__all__ = ["configure", "configure_if_nobody_has", "redact"]

_NESTING_LIMIT = 6


def configure(*, json: bool = False, level: str = "info", stream: TextIO | None = None) -> None:
    """Send structlog's events to the stream (default: stderr). Safe to repeat: the last call wins.

    Below the given level nothing is formatted. Times are UTC. Output of the standard logging
    module (libraries) goes the same way from WARNING on.
    """
    target = sys.stderr if stream is None else stream
    threshold = logging.getLevelNamesMapping().get(level.upper())
    if threshold is None:
        raise ValueError(f"not a log level: {level!r} (debug, info, warning, error, critical)")
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        _explain_errors,
    ]
    renderers = _json_lines() if json else _console(target)
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(target),
        # Loggers made before this call must follow it.
        cache_logger_on_first_use=False,
    )
    _take_over_standard_logging(target, [*shared, structlog.stdlib.ExtraAdder()], renderers)


def configure_if_nobody_has() -> None:
    """The configuration for callers from Python: only warnings and errors of walflow, on stderr,
    like any library.

    The caller's own events stay as structlog shows them. (Without this, structlog would print all
    of walflow's lines, debug too, on stdout.) An earlier configuration, by ``configure`` or
    otherwise, stays.
    """
    if structlog.is_configured():
        return
    of_caller: list[Processor] = list(structlog.get_config()["processors"])
    ours: list[Processor] = [
        # Not by a class that filters: what replaces the processors, as tests do, sees all.
        _only_warnings,
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        _explain_errors,
        *_console(sys.stderr),
    ]

    def process(logger: WrappedLogger, method: str, event: EventDict) -> Any:
        shown: Any = event
        for processor in ours if isinstance(logger, _OurLogger) else of_caller:
            shown = processor(logger, method, shown)
        return shown

    structlog.configure(
        processors=[process], logger_factory=_new_logger, cache_logger_on_first_use=False
    )


class _OurLogger(structlog.WriteLogger):
    """Writes the events of walflow's own modules."""


def _new_logger(*args: Any) -> WrappedLogger:
    ours = args and isinstance(args[0], str) and args[0].split(".")[0] == "walflow"
    return _OurLogger(sys.stderr) if ours else structlog.PrintLogger()


def _only_warnings(_logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    if method in ("debug", "info"):
        raise structlog.DropEvent
    return event


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Processor: mask secret types, values under secret names, and passwords inside any text."""
    return {key: _redacted_value(key, value, 0) for key, value in event.items()}


def _redacted_value(key: str, value: object, depth: int) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, SecretStr | SecretBytes) or is_secret_name(key):
        return MASK
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping) and depth < _NESTING_LIMIT:
        return {
            redacted(str(name)): _redacted_value(str(name), item, depth + 1)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset) and depth < _NESTING_LIMIT:
        return [_redacted_value("", item, depth + 1) for item in value]
    # Any other object would be printed by its repr: make the text now, where it can be searched.
    return redacted(str(value))


def _explain_errors(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Processor: ``error=exc`` becomes its message, with code and hint beside it."""
    error = event.get("error")
    if isinstance(error, WalflowError):
        event.update(error=error.message, error_code=error.code)
        if error.hint:
            event["hint"] = error.hint
    elif isinstance(error, BaseException):
        event.update(error=str(error), error_code=type(error).__name__)
    return event


def _json_lines() -> list[Processor]:
    # Tracebacks become text first, so that redact sees them too.
    return [
        structlog.processors.format_exc_info,
        redact,
        structlog.processors.JSONRenderer(sort_keys=False, ensure_ascii=False),
    ]


def _console(target: TextIO) -> list[Processor]:
    return [
        structlog.processors.format_exc_info,
        redact,
        structlog.dev.ConsoleRenderer(
            colors=target.isatty(), timestamp_key="time", pad_event_to=30
        ),
    ]


class _StandardHandler(logging.StreamHandler[TextIO]):
    """Marks our handler, so that a second configure() replaces it and leaves others alone."""


def _take_over_standard_logging(
    target: TextIO, shared: list[Processor], renderers: list[Processor]
) -> None:
    root = logging.getLogger()
    for handler in [each for each in root.handlers if isinstance(each, _StandardHandler)]:
        root.removeHandler(handler)
    handler = _StandardHandler(target)
    handler.setLevel(logging.WARNING)
    processors: list[Any] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers]
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=processors)
    )
    root.addHandler(handler)
