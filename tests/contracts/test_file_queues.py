"""What every queue of files promises: in one process, by logs of processes and ranks, at the coordinator of a job."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoint.zygote import Zygote
from data.queued_lines import ACTIONS, FILES, Workers, worker
from monolith.collective.library import MemoryKeyStore
from monolith.data import FileQueue, LocalFileQueue, SharedFileQueue
from monolith.data.sources import FilePatterns
from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from monolith.ps import JobClient, PsCluster
from monolith.train.input.jobs import LocalJob, RankInputs
from ps.served import ServerProcess

pytestmark = pytest.mark.filterwarnings("ignore:monolith.data.SharedFileQueue is deprecated")

MakeQueue = Callable[..., list[FileQueue]]
"""Files, and a seed -> a queue of its own as each of three workers sees it."""


@pytest.fixture(scope="module")
def members(zygote: Zygote) -> Iterator[list[JobClient]]:
    """Three workers of a job whose home server is another process."""
    with ExitStack() as ended:
        process = ServerProcess(zygote, (0, 1))
        ended.callback(process.kill)
        cluster = ended.enter_context(PsCluster(process.addresses))
        yield [ended.enter_context(JobClient(cluster, role="worker", index=index, num_workers=3)) for index in range(3)]


@pytest.fixture(params=["local", "shared", "process", "ranks", "job"])
def make(request: pytest.FixtureRequest, members: list[JobClient], tmp_path: Path) -> MakeQueue:
    numbers = itertools.count()

    def local(paths: list[str], seed: int | None = None) -> list[FileQueue]:
        return [LocalFileQueue(paths, num_workers=3, seed=seed)] * 3

    def shared(paths: list[str], seed: int | None = None) -> list[FileQueue]:
        log = tmp_path / f"{next(numbers)}.log"
        return [SharedFileQueue(log, paths, num_workers=3, seed=seed) for _ in range(3)]

    def job(paths: list[str], seed: int | None = None) -> list[FileQueue]:
        name = f"{tmp_path} {next(numbers)}"
        return [each.file_queue(paths, seed=seed, name=name) for each in members]

    def process(paths: list[str], seed: int | None = None) -> list[FileQueue]:
        return [LocalJob(num_workers=3, applied=dict).file_queue(paths, seed=seed)] * 3

    def ranks(paths: list[str], seed: int | None = None) -> list[FileQueue]:
        store = MemoryKeyStore()
        inputs = [
            RankInputs(store, rank=rank, num_ranks=3, applied=dict, shares_queue=True, name="log") for rank in range(3)
        ]
        return [each.file_queue(paths, seed=seed) for each in inputs]

    makers: dict[str, MakeQueue] = {"local": local, "shared": shared, "process": process, "ranks": ranks, "job": job}
    return makers[request.param]


@given(ACTIONS, st.integers(1, 3), st.sampled_from([None, 3]))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_is_lost_or_duplicated_whichever_worker_restores_its_saved_position(
    make: MakeQueue, actions: list[tuple[int, str]], cycle_length: int, seed: int | None
) -> None:
    workers = Workers(make(FILES, seed), cycle_length)
    for number, action in actions:
        workers.act(number, action)
    workers.read_to_the_end()
    workers.require_each_line_once()


def test_a_turn_requested_again_returns_the_same_file(make: MakeQueue) -> None:
    queues = make(["a:1", "b:1", "c:1"])
    taken = [queues[number].take(number, turn) for number, turn in [(0, 0), (1, 0), (1, 1), (0, 0), (1, 1)]]
    assert [Path(each.path).name for each in taken if each is not None] == ["a:1", "b:1", "c:1", "a:1", "c:1"]
    assert queues[2].take(2, 0) is None
    queues[1].require_taken(1, 2)


def test_every_epoch_hands_out_every_file(make: MakeQueue) -> None:
    queues = make(FILES, 3)
    orders = []
    for epoch in range(2):
        taken = [queues[turn % 3].take(turn % 3, turn // 3, epoch=epoch) for turn in range(9)]
        orders.append([each.path for each in taken if each is not None])
        assert queues[0].take(0, 3, epoch=epoch) is None
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != orders[1]


def test_patterns_are_looked_up_when_files_run_out(make: MakeQueue, tmp_path: Path) -> None:
    (tmp_path / "a1").touch()
    queues = make([str(tmp_path / "a*"), str(tmp_path / "b*")])
    first = queues[0].take(0, 0)
    (tmp_path / "b1").touch()
    second = queues[1].take(1, 0)
    assert first is not None
    assert second is not None
    assert [Path(each.path).name for each in (first, second)] == ["a1", "b1"]
    assert queues[2].take(2, 0) is None


def test_when_two_workers_list_the_same_pattern_the_first_report_counts(
    make: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = make(["a:1", "b:1", "c:1"])
    find, listed, first = FilePatterns.find, [], []

    def find_slowly(self: FilePatterns, number: int) -> list[str]:
        listed.append(number)
        if len(listed) == 1:  # the other worker lists and takes while this one lists
            first.append(queues[1].take(1, 0))
        return find(self, number)

    monkeypatch.setattr(FilePatterns, "find", find_slowly)
    later = [queues[0].take(0, 0), queues[1].take(1, 1), queues[2].take(2, 0)]
    assert [Path(each.path).name for each in [*first, *later] if each is not None] == ["a:1", "b:1", "c:1"]
    assert listed == [0, 0]


def test_what_is_given_back_goes_to_others_from_where_it_was_read(make: MakeQueue) -> None:
    queues = make(["a:5", "b:2"])
    lost = worker(queues[1], 1).read()
    assert [next(lost), next(lost)] == ["a/0", "a/1"]
    assert queues[0].give_back(1, lost.position) == 1
    assert queues[0].give_back(1, lost.position) == 0
    assert sorted(worker(queues[0], 0).read()) == ["a/2", "a/3", "a/4", "b/0", "b/1"]
    with pytest.raises(FailedPreconditionError, match="worker 1 of a file queue gave back its files"):
        queues[1].take(1, 0)
    with pytest.raises(InvalidArgumentError):
        queues[0].give_back(2, lost.position)


def test_a_queue_older_than_a_position_rejects_it(make: MakeQueue) -> None:
    queues = make(FILES)
    with pytest.raises(FailedPreconditionError, match=r"resumes after 2 files, but the queue assigned it 0"):
        queues[0].require_taken(0, 2)
    with pytest.raises(FailedPreconditionError, match=r"resumes after 1 files, but the queue assigned it 0"):
        queues[0].take(0, 1)


def test_no_file_at_all_is_an_error(make: MakeQueue, tmp_path: Path) -> None:
    queues = make([str(tmp_path / "nothing*")])
    with pytest.raises(NotFoundError, match=r"no file matches .*nothing\*"):
        queues[0].take(0, 0)


def test_a_worker_that_cannot_be_is_refused(make: MakeQueue) -> None:
    with pytest.raises(InvalidArgumentError, match="there is no worker -1"):
        make(FILES)[0].take(-1, 0)


def test_positions_carry_what_the_queue_is_of(make: MakeQueue) -> None:
    assert make(FILES)[0].digest == LocalFileQueue(FILES, num_workers=1).digest
    assert make(FILES, 7)[0].digest == LocalFileQueue(FILES, num_workers=1, seed=7).digest
