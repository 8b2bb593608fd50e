"""Runs that push what they publish: receivers have the rows of the last checkpoint, whatever the number of shards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from deltalog.followed import saved_rows, serving_rows
from monolith.cluster.discovery import HostServiceDiscovery
from monolith.serving import DiscoverySyncBackend, ServedShard, serve_shard
from monolith.serving.shards.replicas import shard_role
from monolith.tables.serving_tables import serving_tables
from monolith.testing import ExampleTask
from monolith.train import JobProgramConfig, Params, RunnerConfig, Session, distributed_sync_train
from train.job_threads import ThreadJob

OPTIONS: dict[str, Any] = {"enable_realtime_training": True, "delta_log_interval_secs": 0.1}


def params() -> Params:
    made = ExampleTask.params()
    made.num_batches = 20
    return made


@contextmanager
def receivers(folder: Path, num_shards: int) -> Iterator[tuple[list[ServedShard], DiscoverySyncBackend]]:
    with Session(ExampleTask()) as session:
        tables = {name: serving_tables(store.schema) for name, store in session.state.stores.items()}
    with ExitStack() as closing:
        discovery = closing.enter_context(HostServiceDiscovery(str(folder / "hosts")))
        shards = [
            closing.enter_context(serve_shard("m", f"{index}/{num_shards}", tables=tables))
            for index in range(num_shards)
        ]
        for index, shard in enumerate(shards):
            discovery.register(shard_role("m", index), 0, shard.server.address)
        log = str(folder / "model" / "delta_log")
        yield shards, DiscoverySyncBackend(discovery, log, "m", num_shards, timeout_seconds=60.0)


def timeless(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Rows without the times of their updates: those that are pushed have the time of the push."""
    return sorted((*row[:3], row[4]) for row in rows)


def rows_of(shards: list[ServedShard]) -> list[tuple[object, ...]]:
    return timeless([row for shard in shards for store in shard.stores.values() for row in serving_rows(store)])


@pytest.mark.slow
def test_servers_of_a_job_push_to_any_number_of_shards(tmp_path: Path) -> None:
    with receivers(tmp_path, 3) as (shards, backend):
        job = ThreadJob(
            tmp_path / "model",
            num_ps=2,
            num_workers=2,
            params=params,
            options={**OPTIONS, "force_shutdown_ps": True},
            sync_backend=backend,
        )
        expected = saved_rows(job.run()[0])
        assert len(expected) > 10
        assert rows_of(shards) == timeless(expected)
        assert all(shard.server.tables.num_rows for shard in shards)


def test_a_synchronous_run_pushes_by_its_hook_and_refuses_where_nothing_is_published(tmp_path: Path) -> None:
    with receivers(tmp_path, 2) as (shards, backend):
        config = RunnerConfig(model_dir=str(tmp_path / "model"), **OPTIONS)
        trainer = distributed_sync_train(config, params(), backend, settings=JobProgramConfig(max_steps=5))
        expected = saved_rows(trainer)
        assert rows_of(shards) == timeless(expected)
        with pytest.raises(ValueError, match="pushes what the run publishes, and it publishes nothing"):
            distributed_sync_train(RunnerConfig(model_dir=str(tmp_path / "other")), params(), backend)
