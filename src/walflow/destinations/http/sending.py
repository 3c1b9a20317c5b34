"""One request at a time, sent until it is answered, refused, or given up."""

from __future__ import annotations

import email.utils
import threading
import time
from collections.abc import Mapping
from typing import Any

import httpx
import structlog
import tenacity

from walflow.destinations.http.options import HttpOptions
from walflow.destinations.http.signature import SIGNATURE_HEADER, signature
from walflow.errors import DestinationError
from walflow.redaction import MASK, redacted

__all__ = ["Sender"]

_LONGEST_PAUSE = 30.0
_LONGEST_RETRY_AFTER = 60.0
_TOO_MANY = 429
_SHOWN = 500

_logger = structlog.get_logger(__name__)


class _Again(Exception):
    """The request may succeed if it is sent again."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after
        """How many seconds the server wants to be left alone."""


class Sender:
    """All calls may come from several threads."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._stop = threading.Event()
        self._client = _client(options)
        delay = options.retry_delay_ms / 1000
        self._pause = tenacity.wait_exponential(delay, _LONGEST_PAUSE) + tenacity.wait_random(
            0, delay
        )

    @property
    def ended(self) -> bool:
        return self._stop.is_set()

    def break_off(self) -> None:
        """What waits to be sent again, now or later, is given up at once."""
        self._stop.set()

    def close(self) -> None:
        """Let go of connections. Repeats safely."""
        self._stop.set()
        self._client.close()

    def send(
        self,
        method: str,
        url: httpx.URL,
        what: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        accept: tuple[int, ...] = (),
    ) -> None:
        """Send it, again if need be; returns when the server has accepted it (2xx, or a status in
        ``accept``).

        DestinationError, which is not worth trying again if the server has refused the request,
        with the answer's text as its hint.
        """
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_Again),
            stop=tenacity.stop_after_attempt(1 + self._options.retry_attempts),
            wait=self._wait,
            sleep=self._sleep,
            before_sleep=lambda state: _tell(what, state),
            reraise=True,
        )
        try:
            retrying(self._send_once, method, url, what, body, headers or {}, accept)
        except _Again as error:
            raise DestinationError(
                f"{what} was not accepted by {self._shown(url)}: {error}",
                hint="Check that the service runs, and what it logs.",
            ) from error.__cause__

    def _send_once(
        self,
        method: str,
        url: httpx.URL,
        what: str,
        body: bytes,
        headers: Mapping[str, str],
        accept: tuple[int, ...],
    ) -> None:
        # Made anew each time: what was signed long ago is not accepted.
        request = self._client.build_request(
            method, url, content=body, headers={**headers, **self._signed(method, url, body)}
        )
        try:
            answer = self._client.send(request)
        except (httpx.LocalProtocolError, httpx.UnsupportedProtocol) as error:
            # The text of these has headers in it.
            raise DestinationError(
                f"{what} cannot be sent to {self._shown(url)}: {type(error).__name__}",
                hint="Check destination.uri and destination.options.",
                retry=False,
            ) from None
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise _Again(f"{type(error).__name__}: {self._hidden(str(error))}") from error
        if answer.is_success or answer.status_code in accept:
            return
        said = self._hidden(answer.text.strip())[:_SHOWN]
        if answer.is_server_error or answer.status_code == _TOO_MANY:
            raise _Again(f"it answered {answer.status_code}: {said}", _retry_after(answer))
        raise DestinationError(
            f"{what} was refused by {self._shown(url)} with {answer.status_code} "
            f"{self._hidden(answer.reason_phrase)}",
            hint=said or "The answer has no text: see what the service logs.",
            retry=False,
        )

    def _signed(self, method: str, url: httpx.URL, body: bytes) -> dict[str, str]:
        if self._options.secret is None:
            return {}
        target = url.raw_path.decode()
        value = signature(self._options.secret, int(time.time()), method, target, body)
        return {SIGNATURE_HEADER: value}

    def _sleep(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise _Again("it was not waited for: the pipeline ends")

    def _wait(self, state: tenacity.RetryCallState) -> float:
        error = None if state.outcome is None else state.outcome.exception()
        if isinstance(error, _Again) and error.after is not None:
            return max(error.after, self._pause(state))
        return self._pause(state)

    def _hidden(self, text: str) -> str:
        """Servers and libraries may repeat what they were sent."""
        for value in (self._options.token, self._options.secret):
            if value is not None:
                text = text.replace(value, MASK)
        return redacted(text)

    def _shown(self, url: httpx.URL) -> str:
        return self._hidden(str(url.copy_with(username="", password="", query=None)))


def _client(options: HttpOptions) -> httpx.Client:
    headers = {"User-Agent": "walflow"}
    if options.token is not None:
        headers["Authorization"] = f"Bearer {options.token}"
    return httpx.Client(headers=headers, timeout=options.timeout_ms / 1000)


def _retry_after(answer: httpx.Response) -> float | None:
    """Seconds, whether the header says them or a date; None if it says neither."""
    said = answer.headers.get("Retry-After", "").strip()
    if said.isascii() and said.isdigit():
        seconds = float(said)
    else:
        try:
            moment = email.utils.parsedate_to_datetime(said)
        except ValueError:
            return None
        seconds = moment.timestamp() - time.time()
    return min(max(seconds, 0.0), _LONGEST_RETRY_AFTER)


def _tell(what: str, state: tenacity.RetryCallState) -> None:
    error: Any = None if state.outcome is None else state.outcome.exception()
    _logger.warning(
        "a request was not accepted; sending it again",
        request=what,
        error=str(error),
        attempt=state.attempt_number,
        seconds=round(state.upcoming_sleep, 1),
    )
