"""Whole jobs, as the original's integration test runs them: servers and workers are processes that find each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoint.zygote import Zygote
from monolith.checkpoint import get_checkpoint_state
from monolith.cluster.discovery import HostServiceDiscovery
from monolith.ps import PsCluster
from monolith.ps.places import find_place
from monolith.train.roles.debugging_info import look_up, read_debugging_info
from train.job_binary import Job

CLUSTERS = {
    "4 servers, 3 workers": {"num_ps": 4, "num_workers": 3},
    "2 of 3 servers, 1 that stands by, 2 workers": {
        "num_ps": 2,
        "num_workers": 2,
        "num_extra_ps": 1,
        "num_redundant_ps": 1,
    },
}
_BATCHES = 5

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("numbers", CLUSTERS.values(), ids=list(CLUSTERS))]


def saved_step(job: Job) -> int:
    state = get_checkpoint_state(str(job.model_dir))
    assert state is not None
    return int(state.model_checkpoint_path.rpartition("-")[2])


@pytest.mark.parametrize("case", ["test0", "test2"])
def test_every_process_ends_well_and_every_batch_counts_once(
    zygote: Zygote, tmp_path: Path, numbers: dict[str, int], case: str
) -> None:
    with Job(zygote, tmp_path, case, **numbers) as job:
        job.start_all()
        ended = job.wait_for("worker") | job.wait_for("ps")
        assert set(ended.values()) == {0}, job.logs()
        assert saved_step(job) == _BATCHES * numbers["num_workers"]
        retried = [name for name in ended if "attempt 1 ended (RaiseErrorHook: raised once)" in job.log(name)]
        expected = [f"worker{index}" for index in range(numbers["num_workers"])] if case == "test2" else []
        assert sorted(retried) == expected
        assert "attempt 2" not in job.logs()


def test_servers_that_live_on_are_known_by_the_model_directory(
    zygote: Zygote, tmp_path: Path, numbers: dict[str, int]
) -> None:
    with Job(zygote, tmp_path, "test1", **numbers) as job:
        job.start_all()
        assert set(job.wait_for("worker").values()) == {0}, job.logs()
        info = read_debugging_info(str(job.model_dir))
        assert (len(info.ps_addrs), info.num_workers) == (numbers["num_ps"], numbers["num_workers"])
        assert list(info.features) == ["slot"]
        with PsCluster(info.ps_addrs) as cluster:
            found = [look_up(info, cluster, "slot", row_id) for row_id in range(1, 9)]
            assert all(row is not None and any(row.weights) for row in found)
            assert look_up(info, cluster, "slot", 9) is None
        job.wait_for_any("ps", numbers.get("num_extra_ps", 0))
        registered = HostServiceDiscovery(str(job.folder / "discovery")).query("ps")
        assert set(info.ps_addrs) <= set(registered.values())
        spare = [find_place(address) for address in registered.values() if address not in info.ps_addrs]
        assert len(spare) == numbers.get("num_redundant_ps", 0)  # extra ones have left
        assert all(each is not None and each.index is None for each in spare)
        left = {name: status for name, status in job.statuses.items() if name.startswith("ps")}
        assert list(left.values()) == [0] * numbers.get("num_extra_ps", 0)
