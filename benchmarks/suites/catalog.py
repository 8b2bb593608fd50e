"""The suites of `run.py`, and the rows of each."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from monolith.cli._bench.catalog import ROWS, BenchRow

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    """Rows that are measured together."""

    title: str
    rows: tuple[BenchRow, ...]
    setting: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of a full run's setting that differ from the defaults."""


_TABLE_ROWS: Final = (
    *ROWS,
    BenchRow(
        key="gather",
        title="lookup alone on workload B, against a gather of random 128-byte rows",
        needed_bytes=lambda setting: setting.large_rows * 400,
        function="benchmarks.suites.tables.gather:measure",
    ),
    BenchRow(
        key="callers",
        title="several Python threads that train on one table, against one",
        needed_bytes=lambda setting: setting.small_rows * 250,
        function="benchmarks.suites.tables.callers:measure",
    ),
    BenchRow(
        key="embeddings",
        title="Embeddings of 26 slots, against torchrec's fused collection, torch, and the calls it makes",
        needed_bytes=lambda setting: setting.small_rows * 1500,
        function="benchmarks.suites.tables.embeddings:measure",
    ),
    BenchRow(
        key="growth",
        title="batch times and memory while a table grows from empty",
        needed_bytes=lambda setting: setting.huge_rows * 200,
        function="benchmarks.suites.tables.growth:measure",
    ),
    BenchRow(
        key="optimizers",
        title="row optimizers against SGD",
        needed_bytes=lambda setting: setting.large_rows * 450,
        function="benchmarks.suites.tables.optimizers:measure",
    ),
    BenchRow(
        key="save",
        title="save against a plain write, and training during a background save",
        needed_bytes=lambda setting: setting.large_rows * 400,
        function="benchmarks.suites.tables.save:measure",
    ),
    BenchRow(
        key="cut",
        title="stall of training at a cut",
        needed_bytes=lambda setting: setting.large_rows * 400,
        function="benchmarks.suites.tables.cut:measure",
    ),
)

_FAST_KEYS: Final = ("steps", "training", "lookup", "embeddings", "threads", "callers", "insert", "gather")
"""Rows with limits for every architecture; the fastest rows come first."""

_PS_ROWS: Final = (
    BenchRow(
        key="ps_cpu",
        title="processor time of plan + read + apply on a server, against the bare movement of the same bytes",
        needed_bytes=lambda setting: setting.large_rows * 500,
        function="benchmarks.suites.ps.cpu:measure",
    ),
    BenchRow(
        key="ps_wall",
        title="plan + read + apply on a server, against a store in process",
        needed_bytes=lambda setting: setting.small_rows * 500,
        function="benchmarks.suites.ps.wall:measure",
    ),
    BenchRow(
        key="ps_training",
        title="training steps of a DeepFM on a server, against a store in process",
        needed_bytes=lambda setting: setting.small_rows * 600,
        function="benchmarks.suites.ps.training:measure",
    ),
    BenchRow(
        key="ps_fan_out",
        title="a worker on eight servers, against one on one",
        needed_bytes=lambda setting: setting.small_rows * 500,
        function="benchmarks.suites.ps.fan_out:measure",
    ),
    BenchRow(
        key="ps_dense",
        title="dense weights pulled from and pushed to a server, against the bare movement of the bytes",
        needed_bytes=lambda _: 400_000_000,
        function="benchmarks.suites.ps.dense:measure",
    ),
    BenchRow(
        key="ps_tls",
        title="batches over TLS on the frame port, against the control port and plain text",
        needed_bytes=lambda _: 400_000_000,
        function="benchmarks.suites.ps.tls:measure",
    ),
    BenchRow(
        key="ps_scale",
        title="four workers on four servers, against one on one",
        needed_bytes=lambda setting: setting.small_rows * 500,
        function="benchmarks.suites.ps.scale:measure",
    ),
    BenchRow(
        key="ps_cut",
        title="stall of four workers at a cut of the servers",
        needed_bytes=lambda setting: setting.small_rows * 400,
        function="benchmarks.suites.ps.cut:measure",
    ),
)

_JOB_ROWS: Final = (
    BenchRow(
        key="job_training",
        title="steps of a job of one worker and one server, against the bare loop of a session",
        needed_bytes=lambda setting: setting.small_rows * 900,
        function="benchmarks.suites.cluster.training:measure",
    ),
    BenchRow(
        key="job_record",
        title="steps of a job whose servers write their recovery record, against one whose do not",
        needed_bytes=lambda setting: setting.small_rows * 900,
        function="benchmarks.suites.cluster.record:measure",
    ),
    BenchRow(
        key="job_save",
        title="the longest pause of four workers at a save",
        needed_bytes=lambda setting: setting.small_rows * 500,
        function="benchmarks.suites.cluster.save:measure",
    ),
    BenchRow(
        key="job_worker_loss",
        title="from the death of a worker to its first step",
        needed_bytes=lambda setting: setting.small_rows * 500,
        function="benchmarks.suites.cluster.worker_loss:measure",
    ),
    BenchRow(
        key="job_start",
        title="from the start of a job to its first step",
        needed_bytes=lambda setting: setting.small_rows * 500,
        function="benchmarks.suites.cluster.start:measure",
    ),
    BenchRow(
        key="job_server_loss",
        title="from the death of a server with many rows to the first update on it",
        needed_bytes=lambda setting: setting.large_rows * 400,
        function="benchmarks.suites.cluster.server_loss:measure",
    ),
    BenchRow(
        key="job_home",
        title="empty steps of many workers that one server counts",
        needed_bytes=lambda _: 400_000_000,
        function="benchmarks.suites.cluster.home:measure",
    ),
    BenchRow(
        key="job_restart",
        title="a killed server until it is back from checkpoint and record, against a restore of an empty one",
        needed_bytes=lambda setting: setting.large_rows * 700,
        function="benchmarks.suites.cluster.restart:measure",
    ),
)

_SYNC_ROWS: Final = (
    BenchRow(
        key="sync_exchange",
        title="processor time that a rank's exchanges add to the table step in process",
        needed_bytes=lambda setting: setting.small_rows * 900,
        function="benchmarks.suites.sync.exchange:measure",
    ),
    BenchRow(
        key="sync_training",
        title="training steps of two ranks of one thread, against one process of two threads",
        needed_bytes=lambda setting: setting.small_rows * 2000,
        function="benchmarks.suites.sync.training:measure",
    ),
    BenchRow(
        key="sync_torchrec",
        title="training steps of two ranks, against torchrec's row-wise sharded collection",
        needed_bytes=lambda setting: setting.small_rows * 2000,
        function="benchmarks.suites.sync.beside_torchrec:measure",
    ),
    BenchRow(
        key="sync_collective",
        title="what collective adds to a bare exchange of the rows of a batch",
        needed_bytes=lambda _: 800_000_000,
        function="benchmarks.suites.sync.collective:measure",
    ),
)

_ONLINE_ROWS: Final = (
    BenchRow(
        key="online_changes",
        title="reading which rows of a large table have changed",
        needed_bytes=lambda setting: setting.large_rows * 250,
        function="benchmarks.suites.online.changes:measure",
    ),
    BenchRow(
        key="online_follower",
        title="a follower with all rows that takes those that have changed",
        needed_bytes=lambda setting: setting.large_rows * 350,
        function="benchmarks.suites.online.follower:measure",
    ),
    BenchRow(
        key="online_path",
        title="from a training step to a follower in another process, and what publishing costs training",
        needed_bytes=lambda setting: setting.small_rows * 700,
        function="benchmarks.suites.online.path:measure",
    ),
    BenchRow(
        key="online_joiner",
        title="joining impressions and actions, against Bytewax",
        needed_bytes=lambda _: 400_000_000,
        function="benchmarks.suites.online.joiner:measure",
    ),
)

_SERVING_ROWS: Final = (
    BenchRow(
        key="serving_graph",
        title="the graph of an export, against the module that it was made of",
        needed_bytes=lambda _: 400_000_000,
        function="benchmarks.suites.serving.graph:measure",
    ),
    BenchRow(
        key="serving_layout",
        title="from the bytes of a request to pooled rows, against Embeddings in evaluation",
        needed_bytes=lambda setting: setting.small_rows * 500,
        function="benchmarks.suites.serving.layout:measure",
    ),
    BenchRow(
        key="serving_server",
        title="overhead of a server over its model, over HTTP and gRPC",
        needed_bytes=lambda _: 400_000_000,
        function="benchmarks.suites.serving.server:measure",
    ),
    BenchRow(
        key="serving_load",
        title="answers of a server on one core: how many, how late, following a log, under overload",
        needed_bytes=lambda setting: setting.small_rows * 700,
        function="benchmarks.suites.serving.load:measure",
    ),
    BenchRow(
        key="serving_ray",
        title="requests that a server answers on one core, against Ray Serve with the same predictor",
        needed_bytes=lambda setting: 2_000_000_000 + setting.small_rows * 700,
        function="benchmarks.suites.serving.beside_ray:measure",
    ),
    BenchRow(
        key="serving_start",
        title="a server that starts with many rows, and their memory",
        needed_bytes=lambda setting: setting.large_rows * 500,
        function="benchmarks.suites.serving.start:measure",
    ),
)


def _fast_rows() -> tuple[BenchRow, ...]:
    by_key = {row.key: row for row in _TABLE_ROWS}
    return tuple(by_key[key] for key in _FAST_KEYS)


SUITES: Final[Mapping[str, Suite]] = {
    "tables": Suite(title="tables and their peers", rows=_TABLE_ROWS),
    "fast": Suite(
        title="rows with limits for every architecture, on tables of at most 10M rows",
        rows=_fast_rows(),
        setting={"huge_rows": 10_000_000, "seconds": 0.5},
    ),
    "ps": Suite(
        title="parameter servers, against a store in process and bare sockets", rows=_PS_ROWS, setting={"rounds": 9}
    ),
    "cluster": Suite(title="jobs of many processes: steps, pauses, recovery", rows=_JOB_ROWS),
    "sync": Suite(
        title="synchronous training: ranks, against one process, torchrec and a bare exchange",
        rows=_SYNC_ROWS,
        setting={"rounds": 9},
    ),
    "online": Suite(
        title="from events to examples, and from a trainer's rows to its followers",
        rows=_ONLINE_ROWS,
        setting={"rounds": 9},
    ),
    "serving": Suite(
        title="a DeepFM that is served: its graph, layout, server, and load", rows=_SERVING_ROWS, setting={"rounds": 9}
    ),
}

ROW_OF_KEY: Final = {row.key: row for suite in SUITES.values() for row in suite.rows}
