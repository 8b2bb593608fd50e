"""The MLP platform: its variables, discovery by them, and the roles that do not train."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from discovery_backends import mlp_variables
from monolith.cluster.discovery import MLPServiceDiscovery
from monolith.cluster.runtimes import MLPEnv, add_mpi_exception_hook, mlp_pass, mpi_rank
from monolith.cluster.runtimes import mlp as _mlp
from monolith.errors import DeadlineExceededError, FailedPreconditionError, UnimplementedError
from monolith.testing import FakeClock

VARIABLES = mlp_variables(["10.0.0.1:2222", "10.0.0.2:2222"], ["10.0.1.1:3333", "10.0.1.2:3334"])
MPI = {
    **VARIABLES,
    "MLP_ROLE": "worker",
    "MLP_PORT": "3333",
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}


class Ports:
    """Which ports accept, by time; stands in for the network in `check_port`."""

    def __init__(self, clock: FakeClock, **accepts: Callable[[float], bool]) -> None:
        self.clock = clock
        self.accepts = accepts
        self.tried: list[tuple[str, int]] = []

    def __call__(self, host: str, port: int, timeout: float = 0.0, *, clock: object = None) -> bool:
        self.tried.append((host, port))
        return self.accepts[f"p{port}"](self.clock.monotonic())


class RecordingService:
    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def start_dispatcher(self, port: int) -> None:
        self.calls.append(("dispatcher", port))

    def start_worker(self, port: int, dispatcher: str) -> None:
        self.calls.append(("worker", port, dispatcher))

    def stop(self) -> None:
        self.calls.append(("stop",))


def data_service_variables(role: str, index: int = 0) -> dict[str, str]:
    return {
        **VARIABLES,
        "MLP_ROLE": role,
        "MLP_ROLE_INDEX": str(index),
        "MLP_SSH_PORT": "22",
        "MLP_DISPATCHER_NUM": "1",
        "MLP_DISPATCHER_0_PRIMARY_HOST": "10.0.2.1",
        "MLP_DISPATCHER_0_PORT": "4444",
        "MLP_DSWORKER_NUM": "1",
        "MLP_DSWORKER_0_PRIMARY_HOST": "10.0.3.1",
        "MLP_DSWORKER_0_PORT": "5555",
    }


def test_it_is_read_from_the_variables_of_the_process_open_mpi_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MLP_ROLE", "worker"), ("MLP_WORKER_NUM", "2"), ("OMPI_COMM_WORLD_RANK", "5")):
        monkeypatch.setenv(name, value)
    env = MLPEnv()
    assert (env.available, env.enable_mpi, env.index) == (True, True, 5)


def test_the_variables_specify_the_role_and_address_of_each_process() -> None:
    env = MLPEnv(
        {**VARIABLES, "MLP_CPU": "8", "MLP_GPU_TYPE": "'none'", "MLP_FRAMEWORK": '"torch"', "MLP_CUDA_X_NUM": "7"}
    )
    assert env.available
    assert (env.role, env.index, env.port, env.cpu, env.gpu_type) == ("PS", 0, 2222, 8, "none")
    assert env.framework == "torch"
    assert env.all_roles == {"PS": 2, "WORKER": 2}
    assert [env.num_replicas(role) for role in ("ps", "WORKER", "chief", None)] == [2, 2, 0, 2]
    assert env.get_addr("worker", 1) == "10.0.1.2:3334"
    assert env.get_addr() == "10.0.0.1:2222"
    assert env.get_addr("worker", 7) is None
    assert not env.enable_mpi


def test_hosts_have_two_names_and_lists() -> None:
    env = MLPEnv(
        {
            "MLP_ROLE": "ps",
            "MLP_PS_NUM": "1",
            "MLP_PS_0_HOST": "fd00::1",
            "MLP_PS_0_PORT": "1",
            "MLP_PS_ALL_HOSTS": "a, b,",
            "MLP_PS_ALL_PRIMARY_ADDRS": "a:1,b:2",
        }
    )
    assert env.get_host(is_primary=False) == "fd00::1"
    assert env.get_addr(is_primary=False) == "[fd00::1]:1"
    assert env.get_host() is None
    assert env.get_all_host(is_primary=False) == ["a", "b"]
    assert env.get_all_addrs() == ["a:1", "b:2"]
    assert env.get_all_host() == env.get_all_addrs("worker") == []


def test_mpi_workers_share_hosts_and_count_ports_from_the_first() -> None:
    env = MLPEnv(MPI)
    assert env.enable_mpi
    assert (env.index, env.port, env.num_replicas()) == (5, 3338, 8)
    assert env.get_addr("worker", 3) == "10.0.1.1:3336"
    assert env.get_addr() == "10.0.1.2:3338"
    assert env.get_addr("ps", 1) == "10.0.0.2:2222"
    assert MLPServiceDiscovery(env).query("worker")[7] == "10.0.1.2:3340"


def test_elsewhere_nothing_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not MLPEnv({}).available
    assert not MLPEnv({"MLP_ROLE": "ps"}).available
    monkeypatch.setenv("MLP_ROLE", "'worker'")
    monkeypatch.setenv("MLP_WORKER_NUM", "1")
    assert MLPEnv().available
    assert MLPEnv().role == "WORKER"


def test_a_port_that_is_no_number_is_named() -> None:
    with pytest.raises(ValueError, match="MLP_SSH_PORT must be an integer, got 'ssh'"):
        MLPEnv({"MLP_SSH_PORT": "ssh"})


def test_servers_are_returned_when_their_ports_are_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        addr = f"127.0.0.1:{server.getsockname()[1]}"
        assert MLPServiceDiscovery(MLPEnv(mlp_variables([addr], []))).query("ps") == {0: addr}


def test_a_server_that_does_not_open_its_port_for_an_hour_is_named(unused_address: str) -> None:
    clock = FakeClock()
    discovery = MLPServiceDiscovery(MLPEnv(mlp_variables([unused_address], [unused_address])), clock=clock)
    with pytest.raises(DeadlineExceededError, match=f"ps 0 at {unused_address} did not accept .* 3600 s"):
        discovery.query("ps")
    assert clock.monotonic() == 3600
    assert discovery.query("ps", skip_port_check=True) == discovery.query("worker") == {0: unused_address}
    assert clock.monotonic() == 3600


def test_what_is_deregistered_is_hidden_until_it_is_registered() -> None:
    discovery = MLPServiceDiscovery(MLPEnv(VARIABLES))
    discovery.deregister("worker", 0, "10.0.1.1:3333")
    assert discovery.query("worker") == {1: "10.0.1.2:3334"}
    discovery.register("worker", 0, "10.0.1.1:3333")
    assert discovery.query("worker") == {0: "10.0.1.1:3333", 1: "10.0.1.2:3334"}
    discovery.deregister_all()
    assert discovery.query_all() == {}
    discovery.register("ps", 1, "elsewhere:2222")
    assert discovery.query_all() == {"ps": {1: "10.0.0.2:2222"}}


@pytest.mark.parametrize(
    ("name", "index", "addr", "problem"),
    [
        ("ps", 2, "10.0.0.1:2222", "has 2 of role 'ps', got index 2"),
        ("chief", 0, "10.0.0.1:2222", "has 0 of role 'chief'"),
        ("ps", 0, "10.0.0.1:2223", r"gives ps 0 the port 2222, got 10\.0\.0\.1:2223"),
        ("ps", -1, "10.0.0.1:2222", "index of a ps must be >= 0"),
    ],
)
def test_only_what_the_platform_gave_can_be_registered(name: str, index: int, addr: str, problem: str) -> None:
    discovery = MLPServiceDiscovery(MLPEnv(VARIABLES))
    with pytest.raises(ValueError, match=problem):
        discovery.register(name, index, addr)
    with pytest.raises(ValueError, match=problem):
        discovery.deregister(name, index, addr)


def test_a_process_has_its_role_and_index() -> None:
    discovery = MLPServiceDiscovery(MLPEnv({**VARIABLES, "MLP_ROLE": "Worker", "MLP_ROLE_INDEX": "1"}))
    assert (discovery.server_type, discovery.index, discovery.addr) == ("worker", 1, "10.0.1.2:3334")
    assert discovery.query("chief") == {}


@pytest.mark.parametrize("variables", [{}, VARIABLES, {**VARIABLES, "MLP_ROLE": "worker"}])
def test_roles_that_only_train_pass(variables: dict[str, str]) -> None:
    assert mlp_pass(env=MLPEnv(variables)) is None


def test_a_dispatcher_lives_as_long_as_the_first_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, service = FakeClock(), RecordingService()
    monkeypatch.setattr(_mlp, "check_port", Ports(clock, p22=lambda now: 10 <= now < 100))
    with pytest.raises(SystemExit) as ended:
        mlp_pass(env=MLPEnv(data_service_variables("dispatcher")), data_service=service, clock=clock)
    assert ended.value.code == 0
    assert service.calls == [("dispatcher", 4444), ("stop",)]
    assert clock.monotonic() == 100


def test_a_data_worker_waits_for_the_dispatcher(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, service = FakeClock(), RecordingService()
    ports = Ports(clock, p22=lambda now: now < 50, p4444=lambda now: now >= 30)
    monkeypatch.setattr(_mlp, "check_port", ports)
    with pytest.raises(SystemExit):
        mlp_pass(env=MLPEnv(data_service_variables("dsworker")), data_service=service, clock=clock)
    assert service.calls == [("worker", 5555, "10.0.2.1:4444"), ("stop",)]
    assert ports.tried[-1] == ("10.0.1.1", 22)


def test_a_worker_waits_for_the_data_service(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    ports = Ports(clock, p4444=lambda now: now >= 12, p5555=lambda now: now >= 31)
    monkeypatch.setattr(_mlp, "check_port", ports)
    target = mlp_pass(env=MLPEnv(data_service_variables("worker")), clock=clock)
    assert target == "grpc://10.0.2.1:4444"
    assert clock.monotonic() == 35


def test_a_wait_may_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr(_mlp, "check_port", Ports(clock, p1=lambda now: False))
    assert not _mlp.wait_for_port("h", 1, 11, clock=clock)
    assert clock.monotonic() == 15


def test_a_role_of_a_data_service_needs_one() -> None:
    with pytest.raises(UnimplementedError, match=r"MLP role dispatcher: .* give mlp_pass one"):
        mlp_pass(env=MLPEnv(data_service_variables("dispatcher")))


def test_a_missing_address_is_named() -> None:
    variables = data_service_variables("worker")
    del variables["MLP_DSWORKER_0_PORT"]
    variables["MLP_DISPATCHER_NUM"] = "1"
    del variables["MLP_DISPATCHER_0_PRIMARY_HOST"]
    with pytest.raises(FailedPreconditionError, match="MLP_DISPATCHER_0_PRIMARY_HOST and MLP_DISPATCHER_0_PORT"):
        mlp_pass(env=MLPEnv(variables))


def test_outside_mpi_the_exception_hook_is_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sys.excepthook
    add_mpi_exception_hook()
    assert sys.excepthook is before
    assert mpi_rank() is None
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    assert mpi_rank() == 3


@pytest.mark.parametrize(
    ("mpi4py", "status"),
    [
        ("", 1),
        (
            (
                "import types\n"
                "mpi = types.ModuleType('mpi4py.MPI'); sys.modules['mpi4py.MPI'] = mpi\n"
                "mpi.COMM_WORLD = types.SimpleNamespace(Abort=lambda code: os._exit(40 + code))\n"
            ),
            41,
        ),
    ],
)
@pytest.mark.usefixtures("forked_starts")
def test_under_mpi_an_uncaught_exception_ends_the_job(mpi4py: str, status: int) -> None:
    # A thread that never ends stands for a rank that waits in a collective call.
    program = (
        "import os, sys, threading\n"
        "os.environ['OMPI_COMM_WORLD_RANK'] = '0'\n"
        f"{mpi4py}"
        "from monolith.cluster.runtimes import add_mpi_exception_hook\n"
        "add_mpi_exception_hook()\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "raise RuntimeError('rank 0 is broken')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False)
    assert ended.returncode == status
    assert "RuntimeError: rank 0 is broken" in ended.stderr
