"""The fastest servers are chosen, by all workers alike."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch

from hooks.sessions import FakeSession, SleepCalls
from monolith.errors import DeadlineExceededError, InvalidArgumentError, OutOfRangeError, UnavailableError
from monolith.ps import PsCluster
from monolith.ps.places import StandbyServers
from monolith.rpc.protos import parameter_server_pb2 as messages
from monolith.train import BenchmarkConfig, PsBenchMarkTask, Trainer, TrainerConfig, local_train
from monolith.train.roles import ps_benchmark
from monolith.train.roles.ps_benchmark import BenchmarkHook, choose_servers, chosen_of
from ps.test_standby import standing_by

PAIR = ["ps0", "ps1"]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that do not wait for stragglers."""
    monkeypatch.setattr(ps_benchmark, "SETTLE_SECONDS", 0.01)
    monkeypatch.setattr(ps_benchmark, "POLL_SECONDS", 0.01)


class Board:
    """Servers of given speeds, and notes that workers of one process share."""

    def __init__(self, *speeds: float) -> None:
        self.speeds = speeds
        self.left: dict[str, str] = {}
        self.asked: list[float] = []

    def benchmark(self, seconds: float) -> Sequence[float]:
        self.asked.append(seconds)
        return self.speeds

    def note(self, name: str, value: str) -> None:
        self.left[name] = value

    def notes(self) -> Mapping[str, str]:
        return self.left


class FleetingBoard(Board):
    """Its choice is seen by every other look."""

    looks = 0

    def notes(self) -> Mapping[str, str]:
        self.looks += 1
        return {"done/0": "1", "done/1": "1"} if self.looks % 2 else {"result": "ps1"}


@pytest.mark.usefixtures("soon")
class TestPublished:
    """The cases of the original's test."""

    def test_basic(self, tmp_path: Path) -> None:
        params = PsBenchMarkTask.params()
        params.bm_config = BenchmarkConfig(PAIR, num_ps_required=1, num_workers=1, index=0, benchmark_secs=0.05)
        trainer = local_train(params, num_ps=2, model_dir=str(tmp_path / "m"))
        assert len(params.bm_config.ps_list) == 1
        assert params.bm_config.ps_list[0] in PAIR
        assert trainer.state is not None
        assert trainer.state.global_step == 1
        assert list(tmp_path.rglob("*.manifest")) == list(tmp_path.rglob("checkpoint")) == []  # nothing is saved

    def test_skip_benchmark(self, tmp_path: Path) -> None:
        params = PsBenchMarkTask.params()
        board = Board(1.0, 2.0)
        params.bm_config = BenchmarkConfig(PAIR, 1, 1, 0, 1.0, ps_str_overridden="overridden", servers=board)
        local_train(params, num_ps=2, model_dir=str(tmp_path / "m"))
        assert params.bm_config.ps_list[0] == "overridden"
        assert board.asked == []


@pytest.mark.usefixtures("soon")
def test_it_is_one_step_over_four_numbers_and_predicts_nothing() -> None:
    board, params = Board(1.0, 3.0), PsBenchMarkTask.params()
    params.bm_config = BenchmarkConfig(PAIR, 1, 1, 0, 7.0, servers=board)
    task = PsBenchMarkTask(params)
    first, second = (batch for batch, _ in zip(task.input_fn("train"), range(2), strict=False))
    assert torch.equal(first, second)
    assert first.tolist() == pytest.approx([0.12, 0.23, 0.34, 0.45])
    predictions = task.model_fn(first, "predict").predictions
    assert float(predictions) == 0.0
    assert board.asked == []
    assert Trainer(task).train().global_step == 1
    assert board.asked == [7.0]
    assert params.bm_config.ps_list == ["ps1"]
    assert json.loads(board.left["throughput/0"]) == [1.0, 3.0]


def test_benchmark_defaults_match_upstream() -> None:
    config = BenchmarkConfig(PAIR, 1, 1, 0)
    assert (config.benchmark_secs, config.ps_str_overridden) == (60.0, "")
    assert ps_benchmark.JOB_SECONDS == 120.0
    assert ps_benchmark.JOB_SECONDS + ps_benchmark.ANSWER_SECONDS == 150.0


class TestHook:
    def hook(self, board: Board, clock: SleepCalls, index: int = 0, num_workers: int = 10) -> BenchmarkHook:
        return BenchmarkHook(BenchmarkConfig(PAIR, 1, num_workers, index, servers=board), clock=clock)

    def test_it_begins_a_second_after_nine_of_ten_are_ready(self) -> None:
        board = Board()
        coming = iter(range(1, 20))
        clock = SleepCalls(lambda: board.note(f"ready/{next(coming)}", "1"))
        self.hook(board, clock).after_create_session(FakeSession())
        assert clock.sleeps == [0.5] * 8 + [1.0]  # itself and eight others

    def test_it_does_not_wait_for_ever(self) -> None:
        with pytest.raises(DeadlineExceededError, match=r"waited 3600.0 s for workers to be ready"):
            self.hook(Board(), SleepCalls()).after_create_session(FakeSession())

    def test_an_existing_result_ends_the_run(self) -> None:
        board, clock = Board(), SleepCalls()
        board.note("result", "ps1")
        hook = self.hook(board, clock, index=3)
        hook.after_create_session(FakeSession())
        assert clock.sleeps == [1.0]
        with pytest.raises(OutOfRangeError, match="chosen already: ps1"):
            hook.before_run(FakeSession().context())
        hook.end(FakeSession())
        assert hook._config.ps_list == ["ps1"]

    def test_the_chief_waits_ten_seconds_for_the_others_and_chooses_by_the_available_results(self) -> None:
        board, clock = Board(), SleepCalls()
        board.note("throughput/0", "[1.0, 2.0]")
        board.note("throughput/4", "[4.0, 2.0]")
        hook = self.hook(board, clock)
        hook.end(FakeSession())
        assert sum(clock.sleeps) == 10.0
        assert hook._config.ps_list == ["ps0"]

    def test_a_worker_waits_for_the_choice_of_the_chief(self) -> None:
        board = Board()
        for number in range(10):
            board.note(f"done/{number}", "1")
        clock = SleepCalls(lambda: board.note("result", "ps0,ps1"))
        hook = self.hook(board, clock, index=9)
        hook.end(FakeSession())
        assert hook._config.ps_list == ["ps0", "ps1"]
        with pytest.raises(DeadlineExceededError, match="for the chief to choose servers"):
            self.hook(Board(), SleepCalls(), index=1).end(FakeSession())

    def test_a_choice_that_was_seen_once_is_kept(self) -> None:
        """The server that has the notes goes away with it, to take its place."""
        board = FleetingBoard()
        hook = self.hook(board, SleepCalls(), index=1, num_workers=2)
        hook.end(FakeSession())
        assert hook._config.ps_list == ["ps1"]


def test_servers_of_one_machine_count_for_their_slower_neighbours() -> None:
    servers = ["10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1", "[fe80::1]:1"]
    config = BenchmarkConfig(servers, 2, 1, 0)
    assert chosen_of(config, [[4.0, 3.0, 6.0, 5.0]]) == ["10.0.0.1:1", "10.0.0.2:1"]  # 4 + 3 before 6
    config.num_ps_required = 4
    assert chosen_of(config, [[4.0, 3.0, 6.0, 5.0]]) == ["10.0.0.1:1", "10.0.0.2:1", "[fe80::1]:1", "10.0.0.1:2"]
    assert chosen_of(config, [[1.0, 1.0, 1.0, 9.0], [9.0, 1.0, 1.0, 1.0]])[0] == "10.0.0.1:1"  # means: 5 + 1, and 5
    assert chosen_of(config, []) == servers


@pytest.mark.usefixtures("soon")
def test_a_worker_that_cannot_measure_leaves_the_choice_to_the_others(caplog: pytest.LogCaptureFixture) -> None:
    class Away(Board):
        def benchmark(self, seconds: float) -> Sequence[float]:
            raise UnavailableError("gone")

    board, params = Away(), PsBenchMarkTask.params()
    params.bm_config = BenchmarkConfig(PAIR, 2, 1, 0, servers=board)
    Trainer(params).train()
    assert "this worker has no measurement of the parameter servers: gone" in caplog.text
    assert params.bm_config.ps_list == PAIR


def test_only_some_workers_of_many_measure() -> None:
    board = Board(1.0, 2.0)
    for index in (15, 16):
        config = BenchmarkConfig(PAIR, 1, 20, index, servers=board)
        ps_benchmark._measure(config)
    assert len(board.asked) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((PAIR, 3, 1, 0), "num_ps_required must be from 1 to 2"),
        ((PAIR, 0, 1, 0), "num_ps_required must be from 1 to 2"),
        ((PAIR, 1, 1, 1), "index must be from 0 to num_workers - 1 = 0, got 1"),
        ((PAIR, 1, 2, 0), "2 workers need servers to coordinate through"),
    ],
)
def test_what_cannot_work_is_refused(arguments: tuple[list[str], int, int, int], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        BenchmarkConfig(*arguments)


def test_a_task_without_its_config_is_rejected() -> None:
    with pytest.raises(TypeError, match=r"set params.bm_config to a BenchmarkConfig, got None"):
        Trainer(PsBenchMarkTask).train()


@pytest.mark.usefixtures("soon")
def test_a_task_that_is_not_saved_restarts_from_scratch_each_time(tmp_path: Path) -> None:
    for _ in range(2):
        params = PsBenchMarkTask.params()
        params.bm_config = BenchmarkConfig(PAIR, 1, 1, 0, servers=Board(1.0, 2.0))
        assert Trainer(params, TrainerConfig(model_dir=str(tmp_path))).train().global_step == 1


@pytest.mark.usefixtures("nothing_left_behind")
class TestChooseServers:
    @pytest.mark.usefixtures("soon")
    def test_all_workers_end_with_the_same_servers_in_their_places(self, tmp_path: Path) -> None:
        with standing_by(3) as roles:
            addresses = [role.address for role in roles]
            found: dict[int, list[str]] = {}

            def choose(index: int) -> None:
                found[index] = choose_servers(
                    addresses, 2, num_workers=2, index=index, secs=0.1, model_dir=str(tmp_path / "m")
                )

            threads = [threading.Thread(target=choose, args=(index,)) for index in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert found[0] == found[1]
            assert len(set(found[0]) & set(addresses)) == 2
            with PsCluster(found[0]) as cluster:
                assert cluster.num_ps == 2
            (left,) = [role for role in roles if role.address not in found[0]]
            assert left.ended()
            # Who comes later, or again, measures nothing:
            assert choose_servers(addresses, 2, num_workers=2, index=1, secs=600.0) == found[0]
            assert list(tmp_path.rglob("*.manifest")) == []

    def test_what_a_chief_began_before_it_died_is_completed(self) -> None:
        with standing_by(3) as roles:
            addresses = [role.address for role in roles]
            with StandbyServers(addresses, 2, timeout_seconds=30) as servers:
                role = roles[0]
                role._server._service.TakePlace(messages.TakePlaceRequest(index=1, num_ps=2))
                while servers.places() != {1: role.address}:
                    pass
            found: list[list[str]] = []

            def wait_for_the_chief() -> None:
                found.append(choose_servers(addresses, 2, num_workers=2, index=1, secs=600.0))

            worker = threading.Thread(target=wait_for_the_chief)
            worker.start()
            found.append(choose_servers(addresses, 2, num_workers=2, index=0, secs=600.0))
            worker.join(30)
            assert found == [[addresses[1], addresses[0]]] * 2
