"""What a job of one machine is told beside its own options."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from monolith.cluster.discovery import ServiceDiscoveryType
from monolith.launch import LaunchPlan, local_job
from monolith.train import RunnerConfig


def plan_of(**options: Any) -> LaunchPlan:
    return LaunchPlan(task="m:T", options=RunnerConfig(num_ps=1, num_workers=2, model_dir="/m", **options))


def test_roles_find_each_other_on_this_machine_alone_and_share_a_secret() -> None:
    with local_job(plan_of()) as plan:
        options = plan.options
        assert (options.discovery_type, options.host) == (ServiceDiscoveryType.HOST, "127.0.0.1")
        assert options.token_file is not None
        token = Path(options.token_file)
        assert len(token.read_text().strip()) > 30
        assert token.stat().st_mode & 0o077 == 0
        assert token.parent.stat().st_mode & 0o077 == 0, "nobody else puts an address there"
        assert options.discovery_dir == str(token.parent / "addresses")
    assert not token.parent.exists()


def test_each_job_has_its_own() -> None:
    with local_job(plan_of()) as first, local_job(plan_of()) as second:
        assert first.options.discovery_dir != second.options.discovery_dir


def test_explicit_options_are_kept() -> None:
    said = {"host": "0.0.0.0", "token_file": "/secret"}  # noqa: S104 - an option's value
    with local_job(plan_of(**said, discovery_type=ServiceDiscoveryType.ZK, zk_server="h:1")) as plan:
        assert (plan.options.host, plan.options.token_file) == ("0.0.0.0", "/secret")  # noqa: S104
        assert plan.options.discovery_type is ServiceDiscoveryType.ZK
        assert not plan.options.is_set("discovery_dir")


@pytest.mark.parametrize("service", [ServiceDiscoveryType.PRIMUS, ServiceDiscoveryType.MLP])
def test_a_discovery_service_for_a_single_process_is_rejected(service: ServiceDiscoveryType) -> None:
    with (
        pytest.raises(ValueError, match="selects which process of a job this one is"),
        local_job(plan_of(discovery_type=service)),
    ):
        pass


def test_workers_share_the_processors_unless_threads_are_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    with local_job(plan_of()) as plan:
        assert plan.environment == {"OMP_NUM_THREADS": "4"}
    with local_job(plan_of(intra_op_parallelism_threads=3)) as plan:
        assert plan.environment == {}
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with local_job(plan_of()) as plan:
        assert plan.environment == {}
