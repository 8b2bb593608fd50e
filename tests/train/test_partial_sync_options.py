"""What a partially synchronous job refuses by name, before it looks for anybody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from monolith.cluster.discovery import ServiceDiscovery, TfConfigServiceDiscovery
from monolith.launch import LaunchPlan
from monolith.testing import ExampleTask
from monolith.train import Ranks, RunnerConfig, Trainer, TrainerConfig, distributed_sync_train, distributed_train
from monolith.train.compat.refusal import _REFUSED
from monolith.train.config.job_config import SyncConfig
from monolith.train.roles.local_runner import make_trainer
from train.compat.test_options_table import other_value
from train.job_threads import MemoryDiscovery

PARTIAL: dict[str, Any] = {"enable_sync_training": True, "enable_partial_sync_training": True}


def start(folder: Path, discovery: ServiceDiscovery | None = None, **options: Any) -> None:
    config = RunnerConfig(**{"model_dir": str(folder), "num_ps": 1, **PARTIAL, **options})
    distributed_train(config, discovery or MemoryDiscovery(), ExampleTask.params())


@pytest.mark.parametrize("role", ["worker", "ps"])
@pytest.mark.parametrize("name", _REFUSED)
def test_an_option_that_would_do_nothing_is_refused_by_every_role(tmp_path: Path, name: str, role: str) -> None:
    with pytest.raises(ValueError, match=f"option {name}=.* is refused"):
        start(tmp_path, server_type=role, **{name: other_value(name)})


def test_one_of_the_two_options_is_not_enough(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"enable_partial_sync_training=True .* needs enable_sync_training"):
        start(tmp_path, enable_sync_training=False)
    with pytest.raises(ValueError, match=r"use distributed_sync_train, or set enable_partial_sync_training, too"):
        start(tmp_path, enable_partial_sync_training=False)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"index": 3, "num_workers": 4}, "index must be the rank that the launcher gave, 0, got 3"),
        ({"num_workers": 4}, "num_workers must be the number of ranks that the launcher gave, 1, got 4"),
        ({"num_ps": 0}, "num_ps must be >= 1: servers keep the rows of a job, got 0"),
    ],
)
def test_another_place_than_the_launcher_gave_is_refused(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        start(tmp_path, **options)


def test_the_index_of_a_scheduler_must_be_the_rank_too(tmp_path: Path) -> None:
    cluster = {"ps": ["127.0.0.1:1"], "chief": ["127.0.0.1:2"], "worker": ["127.0.0.1:3"]}
    told = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
    with pytest.raises(ValueError, match="index must be the rank that the launcher gave, 0, got 1"):
        start(tmp_path, TfConfigServiceDiscovery(told))


def test_a_run_without_servers_and_a_launcher_without_ranks_refuse_it(tmp_path: Path) -> None:
    config = RunnerConfig(model_dir=str(tmp_path), **PARTIAL)
    with pytest.raises(ValueError, match=r"enable_partial_sync_training=True .* start a job"):
        make_trainer(config, ExampleTask.params())
    with pytest.raises(ValueError, match=r"enable_partial_sync_training=True .* start a job"):
        distributed_sync_train(RunnerConfig(model_dir=str(tmp_path), **PARTIAL), ExampleTask.params())
    with pytest.raises(ValueError, match="torchrun or mpirun starts the workers of such a job"):
        LaunchPlan(task="m:T", options=RunnerConfig(model_dir="/m", num_ps=1, **PARTIAL))


def test_servers_of_rows_need_a_synchronous_run() -> None:
    servers: Any = object()
    with pytest.raises(ValueError, match=r"row_servers are those of a synchronous run, and config\.sync is None"):
        Trainer(ExampleTask(), TrainerConfig(), strategy=Ranks(servers))
    Trainer(ExampleTask(), TrainerConfig(sync=SyncConfig()), strategy=Ranks(servers))
