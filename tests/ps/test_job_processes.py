"""Members of a job that are processes: what the others hear when one begins, ends, stands still or dies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from checkpoint.zygote import Zygote
from monolith.cluster.job_state import JobState
from monolith.hooks import ChiefSyncHook, SyncHelper, TrainingHooksHelper
from monolith.ps import JobClient, PsCluster
from monolith.testing import StepLoop
from ps.job_processes import WorkerProcess
from ps.served import ServerProcess

PATIENCE_SECONDS = 30.0

WAIT_FOR_STOP = "job.wait_for(lambda state: state.stop_requested, timeout_seconds=30)"
TRAIN_AND_WAIT = f"""
job.flags.set(1, True)
{WAIT_FOR_STOP}
"""


class Home:
    """A home server in a process of its own, and members that end with the test."""

    def __init__(self, zygote: Zygote, ended: ExitStack) -> None:
        self._zygote, self._ended = zygote, ended
        self.process = ServerProcess(zygote, (0, 1))
        ended.callback(self._end)
        self.cluster = ended.enter_context(PsCluster(self.process.addresses, timeout_seconds=PATIENCE_SECONDS))

    def join(self, index: int, *, num_workers: int = 2, lease_seconds: float = 10.0) -> JobClient:
        """A worker of this process."""
        return self._ended.enter_context(
            JobClient(
                self.cluster,
                role="worker",
                index=index,
                num_workers=num_workers,
                address=f"here:{index}",
                lease_seconds=lease_seconds,
            )
        )

    def start(self, index: int, code: str, *, num_workers: int = 2, lease: float = 10.0) -> WorkerProcess:
        """A worker of another process."""
        process = WorkerProcess(self._zygote, self.cluster, index, code, num_workers=num_workers, lease=lease)
        self._ended.callback(process.kill)
        return process

    def _end(self) -> None:
        self.process.kill()

    def restart(self) -> None:
        """The server dies, and another is there at another address."""
        self.process.kill()
        self.process = ServerProcess(self._zygote, (0, 1))


@pytest.fixture
def home(zygote: Zygote) -> Iterator[Home]:
    with ExitStack() as ended:
        yield Home(zygote, ended)


def hears(member: JobClient, predicate: Callable[[JobState], bool]) -> bool:
    return member.wait_for(predicate, timeout_seconds=PATIENCE_SECONDS)


def test_chief_and_worker_of_two_processes_begin_and_end_together(home: Home) -> None:
    """The original's case over processes: the worker waits for the restore, the chief for the end of the worker."""
    worker = home.start(
        1,
        """
(hook,) = TrainingHooksHelper(True, 2, 1, flags=job.flags).training_hooks
with StepLoop([hook]):
    say("may train")
    job.wait_for(lambda state: state.stop_requested, timeout_seconds=30)
say("has ended")
""",
    )
    chief = home.join(0)
    helper = SyncHelper(2, flags=chief.flags)
    assert hears(chief, lambda state: state.training == {1})
    assert helper.get_alive_workers() == [1]
    (hook,) = TrainingHooksHelper(True, 2, 0, PATIENCE_SECONDS, flags=chief.flags).training_chief_hooks
    assert isinstance(hook, ChiefSyncHook)
    ended = threading.Event()

    def lead() -> None:
        with StepLoop([hook]):
            pass
        ended.set()

    thread = threading.Thread(target=lead)
    thread.start()
    assert worker.line() == "may train"
    assert not ended.is_set()
    chief.request_stop()
    assert worker.line() == "has ended"
    thread.join(PATIENCE_SECONDS)
    assert ended.is_set()
    assert helper.get_alive_workers() == []
