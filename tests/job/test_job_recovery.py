"""What of a job comes back with its home server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from monolith.job.state import JobState
from monolith.ps import JobClient, PsCluster, PsServer
from monolith.ps.recovery.config import RecoveryConfig

PATIENCE_SECONDS = 30.0
FILES = ["a", "b", "c", "d"]


class Home:
    """A home server with a record, which may come back."""

    def __init__(self, folder: Path, ended: ExitStack) -> None:
        self._ended = ended
        self._recovery = RecoveryConfig(str(folder), interval_seconds=3600.0)
        self.server = self._start()
        self.cluster = ended.enter_context(PsCluster([self.server.address], timeout_seconds=PATIENCE_SECONDS))

    def join(self, index: int, num_workers: int = 3) -> JobClient:
        job = JobClient(self.cluster, role="worker", index=index, num_workers=num_workers, lease_seconds=3600.0)
        return self._ended.enter_context(job)

    def come_back(self) -> None:
        assert self.server.write_record()
        self.server.close(0.0)
        self.server = self._start()
        self.cluster.move(0, self.server.address)

    def _start(self) -> PsServer:
        return self._ended.enter_context(PsServer(0, num_ps=1, recovery=self._recovery))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with ExitStack() as ended:
        yield Home(tmp_path / "recovery", ended)


def is_back(job: JobClient, before: JobState) -> bool:
    return job.wait_for(
        lambda state: state.incarnation != before.incarnation and len(state.members) == len(before.members),
        timeout_seconds=PATIENCE_SECONDS,
    )


def test_shared_job_state_recovers_with_the_home_server(home: Home) -> None:
    chief, worker, third = home.join(0), home.join(1), home.join(2)
    chief.flags.set(0, True)
    chief.set_step_offset(70)
    chief.report_lost(1, 0, range(4, 13))
    third.finish()
    third.close()
    assert worker.wait_for(lambda state: len(state.members) == 2, timeout_seconds=PATIENCE_SECONDS)
    before = worker.state
    home.come_back()
    for each in (chief, worker):
        assert is_back(each, before)
        state = each.state
        assert (state.restored, state.step_offset, dict(state.lost_updates)) == (True, 70, {(1, 0): 9})
        assert (set(state.finished), state.num_workers) == ({2}, 3)
        assert [(who.index, who.incarnation) for who in state.members] == [(0, 1), (1, 1)]


def test_file_assignments_are_recovered_also_after_the_last_record(home: Home) -> None:
    worker = home.join(1)
    queue = worker.file_queue(FILES)
    assert queue.take(1, 0) is not None
    assert home.server.write_record()
    taken = [queue.take(1, turn) for turn in (1, 2)]  # the record does not have it
    home.server.close(0.0)
    home.server = home._start()
    home.cluster.move(0, home.server.address)
    queue.require_taken(1, 3)
    assert [queue.take(1, turn) for turn in (1, 2)] == taken
    last = queue.take(1, 3)
    assert last is not None
    assert last.path == "d"
