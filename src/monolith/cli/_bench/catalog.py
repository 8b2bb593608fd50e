"""The rows of the table: what each measures, where its code is, how much memory it takes."""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.cli._bench.setting import Setting


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row of the table; its code is `measure(setting)` of the module `rows.<key>`."""

    key: str
    title: str
    needed_bytes: Callable[[Setting], int]
    """Maximum memory in bytes, so that a smaller machine skips the row instead of being killed."""


ROWS = (
    Row(
        key="training",
        title="lookup + apply_gradients on workload A, against FBGEMM, torch and dict + torch",
        needed_bytes=lambda setting: setting.large_rows * 800,
    ),
    Row(
        key="lookup",
        title="lookup alone on workload A, against torch's static EmbeddingBag",
        needed_bytes=lambda setting: setting.large_rows * 500,
    ),
    Row(
        key="gather",
        title="lookup alone on workload B, against a gather of random 128-byte rows",
        needed_bytes=lambda setting: setting.large_rows * 400,
    ),
    Row(
        key="insert",
        title="insert of unseen ids, with growth and initializer",
        needed_bytes=lambda setting: setting.large_rows * 200,
    ),
    Row(
        key="steps",
        title="plan, read and apply apart, by threads",
        needed_bytes=lambda setting: setting.large_rows * 250,
    ),
    Row(
        key="threads",
        title="all threads against one",
        needed_bytes=lambda setting: setting.huge_rows * 200,
    ),
    Row(
        key="callers",
        title="several Python threads that train on one table, against one",
        needed_bytes=lambda setting: setting.small_rows * 250,
    ),
    Row(
        key="embeddings",
        title="Embeddings of 26 slots, against torchrec's fused collection, torch, and the calls it makes",
        needed_bytes=lambda setting: setting.small_rows * 1500,
    ),
    Row(
        key="growth",
        title="batch times and memory while a table grows from empty",
        needed_bytes=lambda setting: setting.huge_rows * 200,
    ),
    Row(
        key="memory",
        title="memory per id beyond weights and state",
        needed_bytes=lambda setting: max(setting.memory_rows) * 200,
    ),
    Row(
        key="optimizers",
        title="row optimizers against SGD",
        needed_bytes=lambda setting: setting.large_rows * 450,
    ),
    Row(
        key="save",
        title="save against a plain write, and training during a background save",
        needed_bytes=lambda setting: setting.large_rows * 400,
    ),
    Row(
        key="cut",
        title="stall of training at a cut",
        needed_bytes=lambda setting: setting.large_rows * 400,
    ),
    Row(
        key="restore",
        title="restore against a cold read",
        needed_bytes=lambda setting: setting.large_rows * 400,
    ),
    Row(
        key="one_id",
        title="lookup of one id from Python",
        needed_bytes=lambda setting: setting.small_rows * 200,
    ),
)

FAST_KEYS = ("steps", "training", "lookup", "embeddings", "threads", "callers", "insert", "gather")
"""Rows of `benchmarks/fast_everywhere.py`: those that every architecture is held to."""

PS_ROWS = (
    Row(
        key="ps_cpu",
        title="processor time of plan + read + apply on a server, against the bare movement of the same bytes",
        needed_bytes=lambda setting: setting.large_rows * 500,
    ),
    Row(
        key="ps_wall",
        title="plan + read + apply on a server, against a store in process",
        needed_bytes=lambda setting: setting.small_rows * 500,
    ),
    Row(
        key="ps_training",
        title="training steps of a DeepFM on a server, against a store in process",
        needed_bytes=lambda setting: setting.small_rows * 600,
    ),
    Row(
        key="ps_fan_out",
        title="a worker on eight servers, against one on one",
        needed_bytes=lambda setting: setting.small_rows * 500,
    ),
    Row(
        key="ps_dense",
        title="dense weights pulled from and pushed to a server, against the bare movement of the bytes",
        needed_bytes=lambda _: 400_000_000,
    ),
    Row(
        key="ps_scale",
        title="four workers on four servers, against one on one",
        needed_bytes=lambda setting: setting.small_rows * 500,
    ),
    Row(
        key="ps_cut",
        title="stall of four workers at a cut of the servers",
        needed_bytes=lambda setting: setting.small_rows * 400,
    ),
)
"""Rows of `benchmarks/ps.py`: each starts servers, and some of them workers, as processes."""

JOB_ROWS = (
    Row(
        key="job_training",
        title="steps of a job of one worker and one server, against the bare loop of a session",
        needed_bytes=lambda setting: setting.small_rows * 900,
    ),
    Row(
        key="job_record",
        title="steps of a job whose servers write their recovery record, against one whose do not",
        needed_bytes=lambda setting: setting.small_rows * 900,
    ),
    Row(
        key="job_save",
        title="the longest pause of four workers at a save",
        needed_bytes=lambda setting: setting.small_rows * 500,
    ),
    Row(
        key="job_worker_loss",
        title="from the death of a worker to its first step",
        needed_bytes=lambda setting: setting.small_rows * 500,
    ),
    Row(
        key="job_start",
        title="from the start of a job to its first step",
        needed_bytes=lambda setting: setting.small_rows * 500,
    ),
    Row(
        key="job_server_loss",
        title="from the death of a server with many rows to the first update on it",
        needed_bytes=lambda setting: setting.large_rows * 400,
    ),
    Row(
        key="job_home",
        title="empty steps of many workers that one server counts",
        needed_bytes=lambda _: 400_000_000,
    ),
    Row(
        key="job_restart",
        title="a killed server until it is back from checkpoint and record, against a restore of an empty one",
        needed_bytes=lambda setting: setting.large_rows * 700,
    ),
)
"""Rows of `benchmarks/cluster.py`: jobs of many processes."""

SYNC_ROWS = (
    Row(
        key="sync_exchange",
        title="processor time that a rank's exchanges add to the table step in process",
        needed_bytes=lambda setting: setting.small_rows * 900,
    ),
    Row(
        key="sync_training",
        title="training steps of two ranks of one thread, against one process of two threads",
        needed_bytes=lambda setting: setting.small_rows * 2000,
    ),
    Row(
        key="sync_torchrec",
        title="training steps of two ranks, against torchrec's row-wise sharded collection",
        needed_bytes=lambda setting: setting.small_rows * 2000,
    ),
    Row(
        key="sync_collective",
        title="what collective adds to a bare exchange of the rows of a batch",
        needed_bytes=lambda _: 800_000_000,
    ),
)
"""Rows of `benchmarks/sync.py`: ranks of synchronous training as processes."""


ONLINE_ROWS = (
    Row(
        key="online_changes",
        title="reading which rows of a large table have changed",
        needed_bytes=lambda setting: setting.large_rows * 250,
    ),
    Row(
        key="online_follower",
        title="a follower with all rows that takes those that have changed",
        needed_bytes=lambda setting: setting.large_rows * 350,
    ),
    Row(
        key="online_path",
        title="from a training step to a follower in another process, and what publishing costs training",
        needed_bytes=lambda setting: setting.small_rows * 700,
    ),
    Row(
        key="online_joiner",
        title="joining impressions and actions, against Bytewax",
        needed_bytes=lambda _: 400_000_000,
    ),
)
"""Rows of `benchmarks/online.py`: from what users do to examples, and from the trainer's rows to its followers."""

SERVING_ROWS = (
    Row(
        key="serving_graph",
        title="the graph of an export, against the module that it was made of",
        needed_bytes=lambda _: 400_000_000,
    ),
    Row(
        key="serving_layout",
        title="from the bytes of a request to pooled rows, against Embeddings in evaluation",
        needed_bytes=lambda setting: setting.small_rows * 500,
    ),
    Row(
        key="serving_server",
        title="overhead of a server over its model, over HTTP and gRPC",
        needed_bytes=lambda _: 400_000_000,
    ),
    Row(
        key="serving_load",
        title="answers of a server on one core: how many, how late, following a log, under overload",
        needed_bytes=lambda setting: setting.small_rows * 700,
    ),
    Row(
        key="serving_ray",
        title="requests that a server answers on one core, against Ray Serve with the same predictor",
        needed_bytes=lambda setting: 2_000_000_000 + setting.small_rows * 700,
    ),
    Row(
        key="serving_start",
        title="a server that starts with many rows, and their memory",
        needed_bytes=lambda setting: setting.large_rows * 500,
    ),
)
"""Rows of `benchmarks/serving.py`: a DeepFM that answers requests."""


def measure_row(setting: Setting, row: str) -> list[dict[str, Any]]:
    """Measures one row in this process; the result is JSON-able."""
    module = importlib.import_module(f"monolith.cli._bench.rows.{row}")
    return [measurement.to_json() for measurement in module.measure(setting)]
