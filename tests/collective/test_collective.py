from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from collective import ranks
from collective.collective_suite import CASES
from monolith import collective
from monolith.errors import FailedPreconditionError, UnavailableError
from monolith.hooks import BroadcastGlobalVariablesHook
from ports import free_port
from programs import Programs

SUITE = Path(__file__).with_name("collective_suite.py")
NUM_PROCESSES = 2


@pytest.mark.parametrize("name", CASES)
def test_it_holds_in_one_process_without_a_launcher(name: str) -> None:
    collective.init()
    assert not dist.is_initialized()  # no group, and so no socket
    CASES[name](0, 1)


@pytest.fixture(scope="module")
def ran(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The suite's results of each rank, with the variables that torchrun sets; one start for all tests."""
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    folder = tmp_path_factory.mktemp("ranks")
    return ranks.results(programs, SUITE, folder, size=NUM_PROCESSES, variables=variables)


def test_two_processes_ran_the_complete_suite(ran: list[dict[str, Any]]) -> None:
    assert [rank["size"] for rank in ran] == [NUM_PROCESSES] * NUM_PROCESSES
    assert all(rank["ran"] == list(CASES) for rank in ran)


@pytest.mark.parametrize("name", CASES)
def test_it_holds_in_two_processes(name: str, ran: list[dict[str, Any]]) -> None:
    assert "\n".join(rank["failures"].get(name, "") for rank in ran).strip() == ""


def test_calls_before_init_raise_an_error_that_names_init() -> None:
    for call in (
        collective.rank,
        collective.size,
        lambda: collective.allgather(torch.ones(1)),
        lambda: collective.broadcast(torch.ones(1)),
        lambda: collective.broadcast_parameters({}),
        lambda: collective.allreduce(torch.ones(1)),
        lambda: collective.alltoall(torch.ones(1), [1]),
        collective.barrier,
        collective.training_line,
        collective.saving_line,
    ):
        with pytest.raises(FailedPreconditionError, match=r"call monolith\.collective\.init\(\) first"):
            call()


def test_init_may_be_repeated_and_shutdown_too() -> None:
    for _ in range(2):
        collective.init()
        collective.init()
        assert collective.size() == 1
        collective.shutdown()
        collective.shutdown()
        with pytest.raises(FailedPreconditionError):
            collective.rank()


@pytest.mark.parametrize("timeout_seconds", [0, -1, float("nan")])
def test_a_time_limit_is_positive(timeout_seconds: float) -> None:
    with pytest.raises(ValueError, match="timeout_seconds must be > 0"):
        collective.init(timeout_seconds=timeout_seconds)


def test_a_process_group_of_the_program_is_joined_and_left_to_it(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        collective.init()
        assert (collective.rank(), collective.size()) == (0, 1)
        collective.shutdown()
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "0"}, "but WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set; start it with torchrun"),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "but RANK is not set"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, "but MASTER_ADDR, MASTER_PORT are not set"),
        ({"RANK": "x", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "RANK must be an integer"),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, r"RANK must be in \[0, 2\)"),
    ],
)
def test_half_a_launcher_is_refused(variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        collective.init()
    assert not dist.is_initialized()


@pytest.mark.parametrize("prefix", ["", "OMPI_COMM_WORLD_"])
def test_one_process_of_a_launcher_needs_no_meeting_point(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{prefix}RANK", "0")
    monkeypatch.setenv("WORLD_SIZE" if not prefix else "OMPI_COMM_WORLD_SIZE", "1")
    collective.init()
    assert (collective.rank(), collective.size()) == (0, 1)


@pytest.mark.slow
def test_ranks_that_do_not_come_are_waited_for_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        UnavailableError, match=rf"rank 1 of 2 could not meet the others at 127.0.0.1:{port} within 1 s"
    ):
        collective.init(timeout_seconds=1)
    assert not dist.is_initialized()


def test_the_hook_wants_a_function() -> None:
    wrong: Any = {"w": torch.ones(1)}
    with pytest.raises(TypeError, match=r"variables must be a function such as model.state_dict, got dict"):
        BroadcastGlobalVariablesHook(wrong)
