"""Options of a job that say who waits how long, and how often: each does what it says, by a clock of the test."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from monolith.checkpoint import Saver
from monolith.cluster.manager import TrainingCluster
from monolith.errors import DeadlineExceededError, InvalidArgumentError, UnavailableError
from monolith.hooks.barrier import BarrierHook
from monolith.hooks.slow_start import CustomGlobalStepWaiterHook
from monolith.job.state import JobMember, JobState
from monolith.testing import FakeClock
from monolith.train import JobConfig, JobProgramConfig, SavingConfig, TrainerConfig
from monolith.train._run_hooks import chief_hooks
from monolith.train.roles.place import RolePlace
from monolith.train.roles.server_watch import ServerReconnector
from monolith.train.roles.worker import WorkerRole
from monolith.train.strategies.servers import JobHook, ParameterServers
from train.job_threads import MemoryDiscovery

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


class FakeClient:
    """A `JobClient` that hears what the test says."""

    def __init__(self, state: JobState, *, index: int = 0, clock: FakeClock | None = None) -> None:
        self.state = state
        self.index = index
        self.num_workers = state.num_workers
        self.barrier = SimpleNamespace(capacity=state.num_workers)
        self.flags = [False] * state.num_workers
        self.clock = clock or FakeClock()
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: self.calls.append(name)

    def wait_for(self, predicate: Callable[[JobState], bool], *, timeout_seconds: float) -> bool:
        self.clock.sleep(timeout_seconds)
        return predicate(self.state)


def part_of(client: FakeClient, settings: JobConfig | None = None) -> ParameterServers:
    other: Any = None
    given: Any = client
    return ParameterServers(other, given, settings or JobConfig(), servers_back=other, clock=client.clock)


def worker(index: int, *, alive: bool) -> JobMember:
    return JobMember(role="worker", index=index, alive=alive)


class TestTheEnd:
    def end(self, state: JobState, settings: JobConfig) -> tuple[bool, FakeClient]:
        client = FakeClient(state)
        session: Any = SimpleNamespace(settle=lambda: None, state=SimpleNamespace(global_step=3))
        found = part_of(client, settings).has_more_input(session, "data", while_waiting=lambda: None)
        return found, client

    def test_a_chief_waits_for_unavailable_workers_until_its_timeout(self) -> None:
        gone = JobState(num_workers=3, finished=frozenset({1}), members=(worker(2, alive=False),))
        found, client = self.end(gone, JobConfig(chief_timeout_seconds=77))
        assert not found
        assert 77 <= client.clock.monotonic() < 80
        assert client.calls[0] == "finish"

    def test_a_chief_does_not_wait_for_those_that_are_done(self) -> None:
        done = JobState(num_workers=3, finished=frozenset({1}), left=frozenset({2}), steps=12, step_offset=5)
        _, client = self.end(done, JobConfig())
        assert client.clock.monotonic() == 0


class Attempts(WorkerRole):
    """A worker whose attempts end as the test says."""

    def __init__(self, outcomes: Sequence[Any], members: Sequence[tuple[int, ...]], settings: JobConfig) -> None:
        self.clock = FakeClock()
        place = RolePlace(
            role="worker",
            index=1,
            num_ps=2,
            num_workers=2,
            settings=settings,
            discovery=MemoryDiscovery(),
            model_dir="/m",
        )
        params: Any = SimpleNamespace()
        super().__init__(place, params, TrainerConfig(), clock=self.clock, program=JobProgramConfig())
        self._outcomes = list(outcomes)
        given = iter(members)
        self._places = type("Places", (), {"members": property(lambda _: next(given))})()

    def tried(self) -> Any:
        return self._attempts("a:1")

    def _assemble(self, address: str) -> TrainingCluster:
        return TrainingCluster({}, {})

    def _attempt(self, cluster: TrainingCluster, address: str) -> Any:
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


AWAY = UnavailableError("a server is away")
LATE = DeadlineExceededError("no answer")


class TestAttempts:
    def test_the_same_servers_are_tried_without_limit_and_with_a_pause(self) -> None:
        role = Attempts([AWAY, LATE, AWAY, "trained"], [(0, 1)] * 4, JobConfig(retry_wait_seconds=7))
        assert role.tried() == "trained"
        assert role.clock.monotonic() == 3 * 7

    def test_other_servers_are_taken_as_often_as_allowed(self) -> None:
        members = [(0, 1), (0, 2), (1, 2), (0, 1)]
        allowed = Attempts([AWAY, AWAY, "trained"], members, JobConfig(max_retry_times=2))
        assert allowed.tried() == "trained"
        refused = Attempts([AWAY, AWAY, AWAY], members, JobConfig(max_retry_times=1))
        with pytest.raises(UnavailableError, match=r"others than before .* allowed are 1 \(max_retry_times\)"):
            refused._attempts("a:1")

    def test_without_partial_recovery_other_servers_end_the_job(self) -> None:
        with pytest.raises(UnavailableError, match="allowed are 0"):
            Attempts([AWAY, "trained"], [(0, 1), (0, 2)], JobConfig())._attempts("a:1")

    def test_other_errors_end_the_role_immediately(self) -> None:
        role = Attempts([InvalidArgumentError("yours")], [(0, 1)], JobConfig())
        with pytest.raises(InvalidArgumentError, match="yours"):
            role._attempts("a:1")


class TestHooks:
    def test_a_worker_starts_slowly_by_the_step_of_the_job(self) -> None:
        client = FakeClient(JobState(num_workers=3, steps=10), index=2)
        hooks = part_of(client, JobConfig(slow_start_steps=9, max_slow_start_wait_minutes=2)).hooks_after_savers()
        (slow,) = (each for each in hooks if isinstance(each, CustomGlobalStepWaiterHook))
        assert slow._wait_until_step == 9  # int(9 * ln 3)
        assert slow._global_step is not None
        assert slow._global_step() == 10
        assert 120 <= slow._slow_start._patience_seconds <= 720
        assert [type(each) for each in hooks[-3:]] == [BarrierHook, CustomGlobalStepWaiterHook, JobHook]

    def test_the_chief_and_a_job_without_it_do_not_wait(self) -> None:
        chief = part_of(FakeClient(JobState(num_workers=2)), JobConfig(slow_start_steps=9)).hooks_after_savers()
        other = part_of(FakeClient(JobState(num_workers=2), index=1)).hooks_after_savers()
        assert not any(isinstance(each, CustomGlobalStepWaiterHook) for each in [*chief, *other])

    @pytest.mark.parametrize("barrier", [False, True])
    def test_workers_wait_for_dense_checkpoints_if_they_are_to(self, barrier: bool, tmp_path: Path) -> None:
        config = TrainerConfig(
            model_dir=str(tmp_path),
            saving=SavingConfig(every_steps=5, dense_every_steps=2),
            job=JobConfig(barrier_at_dense_saves=barrier, max_pending_seconds_for_barrier=3.5),
        )
        saver = Saver(str(tmp_path))
        part = part_of(FakeClient(JobState(num_workers=2)), config.job)
        part.join(config)
        hooks = chief_hooks(config, saver, part, model_name="m")
        full, dense = (each for each in hooks if type(each).__name__ == "NoFirstSaveCheckpointSaverHook")
        guards = [each._options.guard_saver_listeners for each in (full, dense)]  # type: ignore[attr-defined]
        assert [len(each) for each in guards] == [1, int(barrier)]
        assert guards[0][0]._max_pending_seconds == 3.5


class FakeServers:
    """Two servers, of which the test says where they are."""

    num_ps = 2
    is_closed = False

    def __init__(self) -> None:
        self.there = {0}
        self.moved: dict[int, str] = {}

    def is_there(self, index: int, timeout_seconds: float) -> bool:
        return index in self.there

    def move(self, index: int, address: str, *, timeout_seconds: float) -> None:
        if address == "old:1":
            raise UnavailableError("nobody there")
        self.moved[index] = address
        self.there.add(index)


class TestServersBack:
    def test_a_restarted_server_is_found_at_its_new_address(self) -> None:
        servers, clock = FakeServers(), FakeClock()
        said = iter([{1: "old:1"}, {}, {1: "new:1"}])

        def ask() -> dict[int, str]:
            return next(said)

        ServerReconnector(servers, ask, clock=clock).wait(60)  # type: ignore[arg-type]
        assert servers.moved == {1: "new:1"}

    def test_a_failing_discovery_service_is_queried_again(self) -> None:
        servers, clock, answers = FakeServers(), FakeClock(), [OSError("down"), {1: "new:1"}]

        def ask() -> dict[int, str]:
            answer = answers.pop(0)
            if isinstance(answer, OSError):
                raise answer
            return answer  # type: ignore[return-value]

        ServerReconnector(servers, ask, clock=clock).wait(60)  # type: ignore[arg-type]
        assert servers.moved == {1: "new:1"}

    def test_a_server_that_stays_away_is_named_in_time(self) -> None:
        clock = FakeClock()
        with pytest.raises(DeadlineExceededError, match=r"parameter servers \[1\] did not answer for 9 s"):
            ServerReconnector(FakeServers(), dict, clock=clock).wait(9)  # type: ignore[arg-type]
        assert clock.monotonic() < 10
