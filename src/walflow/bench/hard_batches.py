"""Hard batches (overflow, TOAST with key changes, truncates, keyless tables), against a bare MERGE
of as many plain changes.

Each kind has its own table, and changes as files of the change log, without a source.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from walflow.bench.bare_merge import BareMerge, SparkJobs, counted_jobs
from walflow.bench.made_up import MadeUpTable, made_up_schema, made_up_values
from walflow.bench.measure import Comparison, Timing, compare, measured_with_jvm, show
from walflow.config import SparkSettings, load_settings
from walflow.destinations import delta, iceberg, open_destination
from walflow.destinations.base import TableChanges, TableCopy
from walflow.destinations.lake import LakeDestination
from walflow.destinations.lake.format import LakeFormat
from walflow.destinations.lake.sessions import lake_session
from walflow.model import ChangeStats, Lsn, Span, TableSchema
from walflow.spark.jars import DELTA, ICEBERG
from walflow.spark.session import make_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["KINDS", "HardBatches", "HardTable", "bench_hard_batches", "show_hard_batches"]

KINDS = ("overflow", "moving", "emptied", "keyless")
BATCHES_OF = (100, 10_000)
_WARM_UP_BATCHES = 6
_FILES = 16


@dataclass(frozen=True, slots=True)
class HardBatches:
    """A comparison, and the number of Spark jobs for the last batch."""

    comparison: Comparison
    jobs: SparkJobs


def bench_hard_batches(
    rows: Sequence[int],
    formats: Sequence[str],
    settings: Mapping[str, str],
    repeats: int,
    *,
    debug: bool = False,
) -> Iterator[HardBatches]:
    """``settings``: of the pipeline, such as apply.engine."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="walflow-bench-"))
        stack.callback(shutil.rmtree, folder)
        conf = {"spark.sql.extensions": f"{iceberg.EXTENSIONS},{delta.EXTENSIONS}"}
        spark = make_session(SparkSettings(), [ICEBERG, DELTA], conf, debug=debug)
        stack.callback(stop_session, spark)
        for format in formats:
            for many in rows:
                lake = _Lake(spark, folder / f"{format}-{many}", format, settings)
                bare, plain = lake.bare_merge(many)
                for kind in KINDS:
                    name = f"{format}, {many / 1e6:g}M rows, {kind}"
                    table = HardTable(kind, many, lake.folder / kind)
                    lake.adopt(table.schema, table.copy_files(), table.position)
                    for size in BATCHES_OF:
                        if size > many // 2:
                            continue
                        yield _bench(name, lake, table, bare, plain, size, repeats)
                lake.destination.shutdown()


@dataclass(slots=True)
class _Lake:
    spark: SparkSession
    folder: Path
    kind: str
    settings: Mapping[str, str]
    destination: LakeDestination = field(init=False)

    def __post_init__(self) -> None:
        settings = load_settings(
            None,
            {
                "name": "bench",
                "source.uri": "postgresql://nowhere/bench",
                "destination.uri": f"{self.kind}://{self.folder}/lake",
                "log.folder": str(self.folder / "log"),
                **self.settings,
            },
            environment={},
        )
        opened = open_destination(settings, "bench", spark=self.spark, warm_up=False)
        assert isinstance(opened.destination, LakeDestination)
        self.destination = opened.destination

    def adopt(self, schema: TableSchema, files: Sequence[Path], position: int) -> None:
        self.destination.copy(TableCopy(schema, tuple(files), Lsn(position), False, self.spark))

    def bare_merge(self, rows: int) -> tuple[BareMerge, MadeUpTable]:
        table = MadeUpTable("plain", rows, self.folder / "plain")
        self.adopt(table.schema, table.copy_files(), table.position)
        lake = str(self.folder / "lake")
        format: LakeFormat = (
            iceberg.IcebergFormat(lake) if self.kind == "iceberg" else delta.DeltaFormat(lake)
        )
        session = lake_session(self.spark, format.session_conf)
        return BareMerge(session, format.identifier(table.schema.name)), table


def _bench(
    name: str,
    lake: _Lake,
    table: HardTable,
    bare: BareMerge,
    plain: MadeUpTable,
    size: int,
    repeats: int,
) -> HardBatches:
    spark = lake.spark

    def ours() -> Timing:
        changes = table.batch(spark, size)
        return measured_with_jvm(lambda: lake.destination.apply(changes))

    def reference() -> Timing:
        return bare.timed(plain.batch(bare.spark, size, recent=False))

    for _ in range(_WARM_UP_BATCHES):
        reference()
        ours()
    comparison = compare(f"{name}, {size:,}", size, ours, "a bare MERGE", reference, repeats)
    changes = table.batch(spark, size)
    jobs = counted_jobs(spark, lambda: lake.destination.apply(changes))
    return HardBatches(comparison, jobs)


@dataclass(slots=True)
class HardTable:
    """A table of so many rows, and batches that go on where the last one ended.

    ``overflow``: half of the changes have a time that the type cannot hold. ``moving``: a text is
    never sent, and every tenth row changes its key. ``emptied``: every batch begins with a
    truncate. ``keyless``: no key, under REPLICA IDENTITY FULL.
    """

    kind: str
    rows: int
    folder: Path
    position: int = 1
    _random: np.random.Generator = field(init=False)
    _keys: npt.NDArray[np.int64] = field(init=False)
    """Of the rows that are there."""
    _salts: npt.NDArray[np.int64] = field(init=False)
    """What their values were made with."""
    _next_key: int = field(init=False)
    _batches: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(7)
        self._keys = np.arange(self.rows, dtype=np.int64)
        self._salts = np.zeros(self.rows, dtype=np.int64)
        self._next_key = self.rows
        self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def schema(self) -> TableSchema:
        schema = made_up_schema(self.kind)
        return replace(schema, key=()) if self.kind == "keyless" else schema

    def copy_files(self) -> list[Path]:
        paths = []
        for number, part in enumerate(np.array_split(self._keys, _FILES)):
            path = self.folder / f"copy-{number}.parquet"
            pq.write_table(pa.table(made_up_values(part)), path, compression="zstd")
            paths.append(path)
        return paths

    def batch(self, spark: SparkSession, changes: int) -> TableChanges:
        """80 % updates, 15 % inserts, 5 % deletes; of ``emptied`` only inserts."""
        after, self.position = self.position, self.position + 1000
        self._batches += 1
        table, stats = self._emptied(changes) if self.kind == "emptied" else self._changed(changes)
        path = self.folder / f"batch-{self._batches}.parquet"
        pq.write_table(table, path, compression="lz4", use_dictionary=["_change_type"])
        span = Span(Lsn(after), Lsn(self.position))
        return TableChanges(self.schema, (str(path),), stats, spark, span)

    def _emptied(self, changes: int) -> tuple[pa.Table, ChangeStats]:
        keys = self._new_keys(changes)
        kinds = ["truncate", *["insert"] * changes]
        nothing = {name: values[:0] for name, values in made_up_values(keys).items()}
        first = {name: pa.nulls(1, values.type) for name, values in nothing.items()}
        values = {
            name: pa.chunked_array([first[name], values])
            for name, values in made_up_values(keys, self.position).items()
        }
        stats = ChangeStats(
            rows=changes + 1,
            inserts=changes,
            truncates=1,
            last_truncate=(self.position - 8, 0),
        )
        return pa.table({**self._origins(kinds), **values}), stats

    def _changed(self, changes: int) -> tuple[pa.Table, ChangeStats]:
        inserts, deletes = changes * 15 // 100, changes * 5 // 100
        updates = changes - inserts - deletes
        places = self._random.choice(len(self._keys), updates + deletes, replace=False)
        before, salts = self._keys[places], self._salts[places]
        after = before.copy()
        moved = np.zeros(updates + deletes, dtype=bool)
        if self.kind == "moving":
            moved[: updates // 10] = True
            after[moved] = self._new_keys(int(moved.sum()))
        new = self._new_keys(inserts)
        keys = np.concatenate([after, new])
        kinds = ["update"] * updates + ["delete"] * deletes + ["insert"] * inserts
        is_new = np.ones(changes, dtype=bool)
        if self.kind == "keyless":
            # A deleted row is sent as it was.
            is_new[updates : updates + deletes] = False
        new_salts = np.where(
            is_new, self.position, np.concatenate([salts, np.zeros(inserts, dtype=np.int64)])
        )
        values = made_up_values(keys, new_salts)
        columns: dict[str, Any] = {**self._origins(kinds)}
        stats = ChangeStats(rows=changes, inserts=inserts, updates=updates, deletes=deletes)
        if self.kind == "overflow":
            is_far = np.arange(changes) % 2 == 0
            columns["_exact"] = pa.array(
                [[("at", "infinity")] if far else None for far in is_far],
                pa.map_(pa.string(), pa.string()),
            )
            stats = replace(stats, overflow=True)
        elif self.kind == "moving":
            unsent = [["extra"] if kind == "update" else None for kind in kinds]
            columns["_unchanged"] = pa.array(unsent, pa.list_(pa.string()))
            mask = np.concatenate([~moved, np.ones(inserts, dtype=bool)])
            columns["_old"] = pa.StructArray.from_arrays(
                [pa.array(np.concatenate([before, new]))], names=["id"], mask=pa.array(mask)
            )
            values["extra"] = pa.array(
                [
                    None if kind == "update" else text
                    for kind, text in zip(kinds, values["extra"].to_pylist(), strict=True)
                ],
                pa.string(),
            )
            stats = replace(stats, unchanged=True, key_changes=int(moved.sum()))
        elif self.kind == "keyless":
            old = made_up_values(
                np.concatenate([before, new]), np.append(salts, np.zeros(inserts, dtype=np.int64))
            )
            is_update = np.array([kind == "update" for kind in kinds])
            columns["_old"] = pa.StructArray.from_arrays(
                list(old.values()), names=list(old), mask=pa.array(~is_update)
            )
            stats = replace(stats, key_changes=updates)
        stays = np.ones(len(self._keys), dtype=bool)
        stays[places] = False
        self._keys = np.concatenate([self._keys[stays], after[:updates], new])
        now = np.full(updates + inserts, self.position, dtype=np.int64)
        self._salts = np.concatenate([self._salts[stays], now])
        return pa.table({**columns, **values}), stats

    def _new_keys(self, count: int) -> npt.NDArray[np.int64]:
        first, self._next_key = self._next_key, self._next_key + count
        return np.arange(first, self._next_key, dtype=np.int64)

    def _origins(self, kinds: Sequence[str]) -> dict[str, Any]:
        count = len(kinds)
        moment = pa.array(np.full(count, 1_700_000_000_000_000), pa.int64())
        return {
            "_change_type": pa.array(kinds),
            "_lsn": np.full(count, self.position - 8, dtype=np.int64),
            "_seq": np.arange(count, dtype=np.int64),
            "_timestamp": moment.cast(pa.timestamp("us", "UTC")),
            "_xid": np.full(count, 700, dtype=np.int64),
        }


def show_hard_batches(console: Console, results: Iterable[HardBatches], *, as_json: bool) -> None:
    """As other comparisons, and the jobs of a batch."""
    seen = list(results)
    show(console, [one.comparison for one in seen], as_json=as_json)
    for one in seen:
        console.print(
            f"{one.comparison.name}: {one.jobs.jobs} jobs, {one.jobs.stages} stages a batch"
        )
        if as_json:
            print(json.dumps({"name": one.comparison.name, **asdict(one.jobs)}))
