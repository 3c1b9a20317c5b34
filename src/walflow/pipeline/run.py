"""One run of a pipeline: what its parts share, and how it ends."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from walflow.config import Settings
from walflow.errors import StoreError
from walflow.observe.metrics import PipelineMetrics
from walflow.pipeline.state.lease import LeaseKeeper
from walflow.pipeline.timing import Timing
from walflow.spark.session import jvm_ended, jvm_ended_error

__all__ = ["PipelineEnd", "PipelineRun"]

_JVM_SECONDS = 2.0


class PipelineEnd:
    """All calls may come from several threads."""

    def __init__(self, *, owns_jvm: bool) -> None:
        """``owns_jvm``: Spark's JVM was started by the pipeline."""
        self._owns_jvm = owns_jvm
        self.asked = threading.Event()
        """Set when the pipeline is to end, for any reason: no new work is begun."""
        self.error: BaseException | None = None
        """The first error that ended the pipeline, if any."""

    def fail(self, error: BaseException) -> None:
        """End the pipeline with this error."""
        if self.error is None:
            self.error = self._cause(error)
        self.asked.set()

    def explains(self, error: Exception) -> bool:
        """Whether a table's work failed only because the pipeline ends: then the table is not to
        blame. If it was the table's own fault, the next start meets it again."""
        cause = self._cause(error)
        if cause is not error or isinstance(error, StoreError):
            self.fail(cause)
        return self.asked.is_set()

    def check(self) -> None:
        """Raise the error that ended the pipeline, if any."""
        if self.error is not None:
            raise self.error

    def _cause(self, error: BaseException) -> BaseException:
        """After the JVM has ended, Spark's errors are only a consequence of that, so the JVM's end
        is raised."""
        if not self._owns_jvm or not isinstance(error, Exception):
            return error
        code = jvm_ended(_JVM_SECONDS)
        return error if code is None else jvm_ended_error(code)


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """What all parts of a running pipeline share."""

    settings: Settings
    """With the publication's name."""
    application: str
    """The application name of our sessions on the source."""
    lease: LeaseKeeper
    metrics: PipelineMetrics
    timing: Timing
    end: PipelineEnd

    @property
    def uri(self) -> str:
        """The source's URI."""
        return self.settings.source.uri.get_secret_value()
