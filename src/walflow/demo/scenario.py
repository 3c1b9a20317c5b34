"""The steps of the demo: shop, pipeline, load, comparison."""

from __future__ import annotations

import importlib
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from walflow.config import Settings, load_settings
from walflow.demo.compare import TableComparison, compare_table
from walflow.demo.load import ShopLoad
from walflow.demo.shop import PUBLICATION, TABLES, Sizes, make_shop
from walflow.destinations.iceberg import table_identifier
from walflow.errors import DestinationError
from walflow.model import TableName
from walflow.pipeline.pipeline import Pipeline
from walflow.spark.java import QUICK_START
from walflow.testing.postgres import EmbeddedPostgres

__all__ = ["Demo", "Outcome"]

_APPLY_SECONDS = 600.0
_POLL_SECONDS = 0.05
DAMAGED_KEY = 7


@dataclass(slots=True)
class Outcome:
    """The results so far; complete when the comparisons are there."""

    comparisons: list[TableComparison] = field(default_factory=list)
    transactions: int = 0
    changes: int = 0
    """Rows that the load changed."""
    first_applied_seconds: float | None = None
    """From the demo's start to the first change in the destination."""
    catch_up_seconds: float | None = None
    """From the load's end until all changes were in the destination."""

    @property
    def equal(self) -> bool:
        return len(self.comparisons) == len(TABLES) and all(
            comparison.equal for comparison in self.comparisons
        )


class Demo:
    """One run of the demo. ``run`` is called in its own thread; other threads may read ``stage``
    and ``pipeline`` meanwhile."""

    def __init__(
        self,
        folder: Path,
        *,
        rows: int,
        rate: float,
        seconds: float,
        damage: bool,
        began: float,
        debug: bool = False,
    ) -> None:
        """Tables go into ``folder/lake``; ``began`` is on the clock time.monotonic()."""
        self.lake = folder / "lake"
        self.destination = f"iceberg://{quote(str(self.lake))}"
        self.outcome = Outcome()
        self.pipeline: Pipeline | None = None
        self._log = folder / "log"
        self._stage = ""
        self._sizes = Sizes.of_total(rows)
        self._rate = rate
        self._seconds = seconds
        self._damage = damage
        self._debug = debug
        self._began = began

    @property
    def stage(self) -> str:
        pipeline = self.pipeline
        if pipeline is None or pipeline.stage == "running":
            return self._stage
        return pipeline.stage

    def run(self) -> None:
        # Postgres's start and the imports for Spark take equally long, so do both at once.
        importing = threading.Thread(target=_import_spark, name="walflow-import", daemon=True)
        importing.start()
        self._stage = "starting Postgres"
        with EmbeddedPostgres(settings={"timezone": "UTC"}) as server:
            self._stage = "creating the shop"
            with server.connect() as connection:
                make_shop(connection, self._sizes)
            importing.join()
            self.pipeline = Pipeline(self._settings(server.uri), debug=self._debug)
            with self.pipeline as pipeline:
                self._load(server, pipeline)
                self._compare(server, pipeline)
                self._stage = "stopping"

    def _settings(self, uri: str) -> Settings:
        return load_settings(
            None,
            {
                "name": "shop",
                "source.uri": uri,
                "source.publication": PUBLICATION,
                "destination.uri": self.destination,
                "log.folder": self._log,
                # A short run: half the start-up for some of the speed.
                "spark": {
                    "driver_memory": "1g",
                    "conf": {"spark.driver.extraJavaOptions": QUICK_START},
                },
            },
            environment={},
        )

    def _load(self, server: EmbeddedPostgres, pipeline: Pipeline) -> None:
        """Write for the given time, then wait until all changes have arrived."""
        with ShopLoad(server.uri, self._sizes, rate=self._rate) as load:
            until = time.monotonic() + self._seconds
            while (left := until - time.monotonic()) > 0:
                self._stage = f"customers are shopping, {left:.0f} s left"
                load.check()
                self._watch(pipeline)
                if (states := pipeline.status().tables) and all(state.followed for state in states):
                    load.allow_truncate()
                time.sleep(_POLL_SECONDS)
        load.check()
        self.outcome.transactions, self.outcome.changes = load.transactions, load.changes
        self._stage = "the shop is closed, waiting until all is applied"
        closed, target = time.monotonic(), pipeline.source_position()
        while not pipeline.wait_until(target, _POLL_SECONDS):
            self._watch(pipeline)
            if time.monotonic() > closed + _APPLY_SECONDS:
                raise DestinationError(
                    f"The changes were not applied within {_APPLY_SECONDS:.0f} s.",
                    hint="The machine may be too busy: try a lower --rate.",
                )
        self._watch(pipeline)
        self.outcome.catch_up_seconds = time.monotonic() - closed

    def _watch(self, pipeline: Pipeline) -> None:
        pipeline.check()
        if self.outcome.first_applied_seconds is None and any(
            state.changes_applied for state in pipeline.status().tables
        ):
            self.outcome.first_applied_seconds = time.monotonic() - self._began

    def _compare(self, server: EmbeddedPostgres, pipeline: Pipeline) -> None:
        if self._damage:
            customers = table_identifier(TableName("shop", "customers"))
            pipeline.spark.sql(f"UPDATE {customers} SET name = 'damaged' WHERE id = {DAMAGED_KEY}")
        with server.connect() as connection:
            for table in TABLES:
                self._stage = f"comparing {table}, every value"
                name = TableName("shop", table)
                self.outcome.comparisons.append(compare_table(connection, pipeline.spark, name))


def _import_spark() -> None:
    for module in ("pyspark.sql", "walflow.destinations.iceberg"):
        importlib.import_module(module)
