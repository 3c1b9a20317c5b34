"""From frames to sealed segments: decoding and the change log, in a thread of its own.

The receiving thread must answer keepalives whatever happens, so all that can take long (decoding,
compression, fsync) happens here, behind a queue that is bounded in bytes.
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass

from walflow.changelog import ChangeLog, SegmentWriter
from walflow.errors import SourceError
from walflow.model import Lsn
from walflow.observe.metrics import PipelineMetrics
from walflow.source.stream.pgoutput import Decoded, Decoder
from walflow.source.wire.frames import Frames

__all__ = ["LogWriter", "SegmentLimits"]

_MAX_QUEUED_BYTES = 64 << 20
_MANY_WAITING = 20
_LONGEST_FILL = 10.0


@dataclass(frozen=True, slots=True)
class _Advance:
    """The server's log is at this position, and has nothing for us before it."""

    position: Lsn


@dataclass(frozen=True, slots=True)
class _Reset:
    """The connection is a new one: discard the open transaction, which the server sends again."""

    done: threading.Event


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """Limits of a segment: it is sealed at the next commit after one of them is reached."""

    max_changes: int
    fill_seconds: float
    bytes: int


class LogWriter:
    """Decodes hand-overs, appends them to the open segment, and seals segments at commits."""

    def __init__(
        self,
        log: ChangeLog,
        decoder: Decoder,
        metrics: PipelineMetrics,
        limits: SegmentLimits,
    ) -> None:
        self._log = log
        self._decoder = decoder
        self._metrics = metrics
        self._limits = limits
        self.applied: Lsn | None = None
        """Everything up to here is in the destination. Set by others. None: not known yet."""
        self._queue: queue.SimpleQueue[Frames | _Advance | _Reset | _Stop] = queue.SimpleQueue()
        self._queued_bytes = 0
        self._queued = 0
        self._lock = threading.Lock()
        self._segment: SegmentWriter = log.writer()
        self._pending: Decoded | None = None
        self._transactions = 0
        self._changes = 0
        self._bytes = 0
        self._began = 0.0
        self._in_transaction = False
        self.error: BaseException | None = None
        """The error that ended the thread, if any."""
        self._interruption: SourceError | None = None
        """Why messages are dropped until the next ``reset``: decoding needed the source, and the
        source was away. They have to be read again."""
        self._thread = threading.Thread(target=self._run, name="walflow-write", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def durable(self) -> Lsn:
        """Everything up to here survives a crash of this machine."""
        return self._log.end

    @property
    def has_room(self) -> bool:
        return self._queued_bytes < _MAX_QUEUED_BYTES

    @property
    def idle(self) -> bool:
        """Whether everything that was handed over is durable."""
        with self._lock:
            return self._queued == 0

    def put(self, frames: Frames) -> None:
        self.check()
        self._enqueue(frames, frames.size)

    def advance(self, position: Lsn) -> None:
        """Everything before the position is irrelevant: let the log's end move to it."""
        self._enqueue(_Advance(position), 0)

    def reset(self) -> None:
        """Drop the unfinished transaction. Returns when everything finished is durable."""
        done = threading.Event()
        self._enqueue(_Reset(done), 0)
        while not done.wait(0.1):
            self._check_alive()

    def check(self) -> None:
        """Raise the error that ended the thread, or that keeps it from writing until the next
        ``reset``."""
        self._check_alive()
        if self._interruption is not None:
            raise self._interruption

    def _check_alive(self) -> None:
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Make finished transactions durable, drop the rest, and end the thread. Repeats safely."""
        if self._thread.is_alive():
            self._enqueue(_Stop(), 0)
            self._thread.join()

    def _enqueue(self, item: Frames | _Advance | _Reset | _Stop, size: int) -> None:
        self._check_alive()
        with self._lock:
            self._queued += 1
            self._queued_bytes += size
        self._queue.put(item)

    def _done(self, count: int, size: int) -> None:
        with self._lock:
            self._queued -= count
            self._queued_bytes -= size

    def _run(self) -> None:
        # Items that are decoded but not sealed still count as queued, so that `idle` means
        # durable; only their bytes have left the queue.
        unsealed = 0
        try:
            while True:
                try:
                    item = self._queue.get(timeout=self._patience())
                except queue.Empty:
                    self._seal()
                    self._done(unsealed, 0)
                    unsealed = 0
                    continue
                unsealed += 1
                match item:
                    case _Stop():
                        self._drop_open()
                        return
                    case _Reset(done):
                        self._drop_open()
                        self._decoder.reset()
                        self._interruption = None
                        done.set()
                    case _Advance(position):
                        if self._interruption is None:
                            self._advance(position)
                    case _:
                        if self._interruption is None:
                            self._append_or_drop(item)
                        self._done(0, item.size)
                if self._pending is None and not self._in_transaction:
                    self._done(unsealed, 0)
                    unsealed = 0
        except BaseException as error:  # handed to the receiving thread, which raises it
            self.error = error
            self._segment.abandon()

    @property
    def _fill_seconds(self) -> float:
        """While many segments wait, sealing quickly does not help, and fewer segments cost less."""
        waiting = 0 if self.applied is None else self._log.waiting(self.applied)
        seconds = self._limits.fill_seconds
        return min(seconds * (1 + waiting / _MANY_WAITING), max(seconds, _LONGEST_FILL))

    def _patience(self) -> float | None:
        """How long to wait for more before the open segment is sealed."""
        if self._pending is None or self._in_transaction:
            return None
        return max(0.0, self._began + self._fill_seconds - time.monotonic())

    def _append_or_drop(self, frames: Frames) -> None:
        try:
            self._append(frames)
        except SourceError as error:
            if not error.retry:
                raise
            self._drop_open()
            self._interruption = error

    def _append(self, frames: Frames) -> None:
        decoded = self._decoder.decode(frames)
        if decoded.in_transaction and not self._in_transaction:
            # A transaction that comes in pieces gets a segment of its own, so that a lost
            # connection costs only its own pieces.
            self._seal()
        self._in_transaction = decoded.in_transaction
        for table in decoded.tables:
            self._segment.append(table.schema, table.batch, table.stats)
            self._changes += table.stats.rows
        self._bytes += frames.size
        self._transactions += decoded.transactions
        self._count(decoded, frames.size)
        if decoded.position is not None:
            if self._pending is None:
                self._began = time.monotonic()
            self._pending = decoded
        full = self._bytes >= self._limits.bytes or self._changes >= self._limits.max_changes
        late = time.monotonic() >= self._began + self._fill_seconds
        if not self._in_transaction and self._pending is not None and (full or late):
            self._seal()

    def _count(self, decoded: Decoded, size: int) -> None:
        self._metrics.bytes_processed.inc(size)
        self._metrics.replication_messages.inc(decoded.messages)
        self._metrics.transactions.inc(decoded.transactions)
        if decoded.transactions:
            # One observation a hand-over: the histogram shows the mix without work a transaction.
            self._metrics.transaction_size.observe(decoded.changes / decoded.transactions)
        for table in decoded.tables:
            self._metrics.events_received(table.schema.name).inc(table.stats.rows)

    def _seal(self) -> None:
        if self._pending is None or self._in_transaction:
            return
        assert self._pending.position is not None
        self._segment.seal(self._pending.position, self._pending.commit_time, self._transactions)
        self._forget()

    def _advance(self, position: Lsn) -> None:
        self._seal()
        if not self._in_transaction:
            # At once: a server that shuts down waits for exactly this acknowledgement.
            self._segment.advance(position, now=True)

    def _drop_open(self) -> None:
        self._seal()
        self._segment.abandon()
        self._in_transaction = False
        self._forget()

    def _forget(self) -> None:
        self._segment = self._log.writer()
        self._pending = None
        self._transactions = 0
        self._changes = 0
        self._bytes = 0
