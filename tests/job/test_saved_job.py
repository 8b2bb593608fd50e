"""What a checkpoint keeps of a job, and with how many workers it goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from monolith.checkpoint.train_state import Stateful
from monolith.job.saved_job import OF_ONE_PROCESS
from monolith.ps import JobClient, PsCluster, PsServer

FILES = ["a", "b", "c", "d"]


class Jobs:
    """One job after another, each on a server of its own."""

    def __init__(self, ended: ExitStack) -> None:
        self._ended = ended

    def begin(self, num_workers: int) -> list[JobClient]:
        """All workers of a new one."""
        server = self._ended.enter_context(PsServer(0, num_ps=1))
        cluster = self._ended.enter_context(PsCluster([server.address]))
        return [
            self._ended.enter_context(JobClient(cluster, role="worker", index=index, num_workers=num_workers))
            for index in range(num_workers)
        ]


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    with ExitStack() as ended:
        yield Jobs(ended)


def saved(job: JobClient) -> dict[str, object]:
    """As a checkpoint brings it back."""
    assert isinstance(job.saved, Stateful)
    state: dict[str, object] = json.loads(json.dumps(job.saved.state_dict()))
    return state


def test_files_that_were_taken_are_taken_after_a_restore(jobs: Jobs) -> None:
    before = jobs.begin(2)
    queues = [job.file_queue(FILES) for job in before]
    assert [queues[number].take(number, 0) for number in (1, 0)] != [None, None]
    state = saved(before[0])
    lost = queues[1].take(1, 1)  # behind the checkpoint
    assert lost is not None
    after = jobs.begin(2)
    after[0].saved.load_state_dict(state)
    again = [job.file_queue(FILES) for job in after]
    taken = [again[number].take(number, turn) for number, turn in ((1, 0), (0, 0), (0, 1), (1, 1))]
    assert [each.path for each in taken if each is not None] == ["a", "b", "c", "d"]


def test_fixed_shares_stay_as_many_and_workers_train_those_of_no_worker(jobs: Jobs) -> None:
    state = saved(jobs.begin(3)[0])
    alone, other = jobs.begin(2)
    assert alone.num_shares == 2
    alone.saved.load_state_dict(state)
    assert other.wait_for(lambda state: state.num_shares == 3, timeout_seconds=60)
    assert alone.num_shares == other.num_shares == 3
    assert alone.state.adoptable == {2}
    assert (alone.adopt_worker(), other.adopt_worker()) == (2, None)
    alone.release_worker(2, finished=True)
    assert alone.state.adoptable == set()
    again = saved(alone)
    assert again["num_shares"] == 3
    more = jobs.begin(4)
    more[0].saved.load_state_dict(again)
    assert more[0].num_shares == 3
    more[0].reset()
    assert more[0].num_shares == 4


def test_what_one_process_trained_is_one_share(jobs: Jobs) -> None:
    first, _ = jobs.begin(2)
    first.saved.load_state_dict(OF_ONE_PROCESS)
    assert first.num_shares == 1


def test_with_a_shared_queue_fewer_workers_continue_for_the_missing_ones(jobs: Jobs) -> None:
    before = jobs.begin(3)
    for number, job in enumerate(before):
        assert job.file_queue(FILES).take(number, 0) is not None
    before[1].finish()
    state = saved(before[0])
    (alone,) = jobs.begin(1)
    alone.saved.load_state_dict(state)
    assert alone.state.finished == {1}
    assert alone.state.lost == alone.state.adoptable == {2}
    assert alone.adopt_worker() == 2
    queue = alone.file_queue(FILES)
    (first, second) = (queue.take(2, turn) for turn in range(2))
    assert first is not None
    assert second is not None
    assert [first.path, second.path] == ["c", "d"]
    alone.release_worker(2, finished=True)
    assert alone.state.finished == {1, 2}
    assert alone.adopt_worker() is None


def test_queues_of_other_files_are_refused(jobs: Jobs) -> None:
    chief, worker = jobs.begin(2)
    chief.file_queue(FILES).take(0, 0)
    with pytest.raises(ValueError, match=r"file queue 'files' of this job is of other patterns or another seed"):
        worker.file_queue(["x"]).take(1, 0)
    assert worker.file_queue(["x"], name="more").take(1, 0) is not None
