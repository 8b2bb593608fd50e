"""What servers say of their machines: memory against a limit, and how fast they compute."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from monolith.cluster import BarrierOp
from monolith.errors import AbortedError, InvalidArgumentError, UnimplementedError
from monolith.hooks import PsHealthHook
from monolith.observe import process_resources
from monolith.ps import PsCluster, PsServer
from monolith.ps.server.server import PsServerConfig
from monolith.testing.ps_cluster import PsProcesses
from ps.server_fixtures import running

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_a_server_reports_its_memory_and_its_limit(caplog: pytest.LogCaptureFixture) -> None:
    limit = ["--monolith_default_machine_info_mem_limit", str(1 << 20)]
    with PsProcesses(1, limit) as (servers, config), config.connect() as cluster:
        (health,) = cluster.health()
        assert health is not None
        assert (health.index, health.address, health.limit_bytes) == (0, servers[0].address, 1 << 20)
        status = Path(f"/proc/{servers[0].pid}/status").read_text(encoding="ascii")
        (resident,) = [int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:")]
        assert health.resident_bytes == pytest.approx(resident, rel=0.2)
        assert health.out_of_memory
        barrier = BarrierOp(1)
        assert PsHealthHook(cluster, barrier).look()
        assert barrier.is_barrier_placed()
        assert f"parameter server 0 at {servers[0].address} has" in caplog.text
        servers[0].kill()
        assert cluster.health(timeout_seconds=0.1) == [None]


def test_any_limit_above_0_is_taken() -> None:
    with PsServer(0, 1, memory_limit_bytes=1) as server, PsCluster([server.address]) as cluster:
        (health,) = cluster.health()
        assert health is not None
        assert (health.limit_bytes, health.out_of_memory) == (1, True)


def test_without_a_limit_there_is_none() -> None:
    with running(2) as servers, PsCluster([server.address for server in servers]) as cluster:
        assert [health and health.limit_bytes for health in cluster.health()] == [0, 0]


def test_a_limit_that_is_none_or_cannot_be_watched_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="memory_limit_bytes must be >= 1 or None, got 0"):
        PsServer(0, 1, memory_limit_bytes=0)
    monkeypatch.setattr(process_resources, "_STATUS", tmp_path / "status")
    with pytest.raises(UnimplementedError, match="which this system does not have"):
        PsServer(0, 1, memory_limit_bytes=1 << 30)
    with PsServer(0, 1) as server, PsCluster([server.address]) as cluster:
        (health,) = cluster.health()
        assert health is not None
        assert health.resident_bytes == 0


def test_servers_compute_for_the_requested_time() -> None:
    with running(2) as servers, PsCluster([server.address for server in servers]) as cluster:
        assert all(throughput > 0 for throughput in cluster.benchmark(0.05))
        for seconds in (0.0, -1.0, 601.0):
            with pytest.raises(InvalidArgumentError, match="seconds above 0, and at most 600"):
                cluster.benchmark(seconds)


def test_a_server_that_ends_does_not_wait_for_a_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(1) as servers, PsCluster([servers[0].address]) as cluster:
        service = servers[0]._service
        begun = threading.Event()
        is_set = service._benchmarks_end.is_set

        def looked() -> bool:
            begun.set()
            return is_set()

        monkeypatch.setattr(service._benchmarks_end, "is_set", looked)
        failed: list[BaseException] = []

        def ask() -> None:
            try:
                cluster.benchmark(600.0)
            except AbortedError as error:
                failed.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        assert begun.wait(30)
        servers[0].close()
        thread.join(30)
        assert len(failed) == 1


def test_a_server_may_have_one_thread_and_not_none() -> None:
    assert PsServerConfig(num_ps=1, num_threads=1).num_threads == 1
    with pytest.raises(InvalidArgumentError, match="num_threads must be >= 1 or None, got 0"):
        PsServerConfig(num_ps=1, num_threads=0)
