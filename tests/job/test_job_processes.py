"""Members of a job that are processes: what the others hear when one begins, ends, stands still or dies."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest

from checkpoint.zygote import Zygote
from job.job_processes import HomeProcess, WorkerProcess
from monolith.errors import AlreadyExistsError, FailedPreconditionError, OpError, UnavailableError
from monolith.hooks import ChiefSyncHook, SyncHelper, TrainingHooksHelper
from monolith.job.state import JobState
from monolith.ps import JobClient, PsCluster
from monolith.rpc.protos import coordinator_pb2 as messages
from monolith.testing import StepLoop

PATIENCE_SECONDS = 30.0

WAIT_FOR_STOP = "job.wait_for(lambda state: state.stop_requested, timeout_seconds=60)"
TRAIN = f"""
job.flags.set(1, True)
{WAIT_FOR_STOP}
"""
SAY_HOW_IT_ENDS = """
from monolith.errors import OpError
try:
    job.wait_for(lambda state: state.stop_requested, timeout_seconds=60)
    job.finish()
    say("goes on")
except OpError as error:
    say([type(error).__name__, str(error)])
"""


class Home:
    """A home server in a process of its own, and members that end with the test."""

    def __init__(self, zygote: Zygote, ended: ExitStack) -> None:
        self._zygote, self._ended = zygote, ended
        self.process = HomeProcess(zygote)
        ended.callback(self._end)
        self.cluster = ended.enter_context(PsCluster([self.process.address], timeout_seconds=PATIENCE_SECONDS))

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

    def restart(self) -> None:
        """The server dies, and another is there at another address."""
        self.process.kill()
        self.process = HomeProcess(self._zygote)
        self.cluster.move(0, self.process.address)

    def _end(self) -> None:
        self.process.kill()


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


def test_the_number_of_a_killed_worker_is_free_before_its_lease_has_ended(home: Home) -> None:
    chief = home.join(0)
    chief.flags.set(0, True)
    worker = home.start(1, TRAIN, lease=3600.0)
    assert hears(chief, lambda state: state.awaited == {1})
    worker.kill()
    assert hears(chief, lambda state: not state.training), "its flag falls with it"
    assert hears(chief, lambda state: not state.awaited)
    again = home.join(1)
    assert [each.incarnation for each in again.state.members] == [1, 2]


def test_a_worker_that_was_suspended_and_not_replaced_resumes(home: Home) -> None:
    chief = home.join(0)
    worker = home.start(1, TRAIN, lease=0.5)
    assert hears(chief, lambda state: state.training == {1})
    worker.stop()
    assert hears(chief, lambda state: not state.training)
    worker.go_on()
    assert hears(chief, lambda state: state.training == {1}), "what it had said counts again"


@pytest.mark.slow
def test_a_worker_that_was_suspended_and_replaced_gets_an_error(home: Home) -> None:
    chief = home.join(0)
    worker = home.start(1, SAY_HOW_IT_ENDS, lease=0.5)
    worker.stop()
    again = home.join(1)  # waits until the lease of the one that stands still has ended
    chief.request_stop()
    worker.go_on()
    kind, text = worker.line()
    assert kind == "AbortedError"
    assert "worker 1 is the process at here:1" in text
    assert hears(again, lambda state: state.stop_requested)
    assert not again.state.finished, "what the one before says does not count"


def test_two_chiefs_are_one_too_many(home: Home) -> None:
    home.start(0, WAIT_FOR_STOP, lease=0.5)
    with pytest.raises(AlreadyExistsError, match=r"worker 0 is the process at there:1, which renewed its lease"):
        home.join(0)


@pytest.mark.slow
def test_a_barrier_falls_with_the_chief_that_placed_it(home: Home) -> None:
    worker = home.join(1)
    chief = home.start(0, f"job.barrier.place_barrier('Save'); {WAIT_FOR_STOP}")
    assert hears(worker, lambda state: state.barrier_placed)
    chief.kill()
    assert worker.barrier.wait_removed(PATIENCE_SECONDS)


def test_members_announce_themselves_to_a_restarted_home_server(home: Home) -> None:
    """What they are and do comes back with them; what was restored does not, without the record of the server."""
    chief, worker = home.join(0), home.join(1)
    worker.flags.set(1, True)
    chief.flags.set(0, True)
    chief.barrier.place_barrier("Save")
    worker.barrier.enter(1)
    before = chief.state.incarnation
    home.restart()
    for each in (chief, worker):
        assert hears(each, lambda state: state.incarnation not in (0, before) and len(state.members) == 2)
        assert hears(each, lambda state: state.barrier_placed and state.blocked == {1} and state.training == {1})
        assert not each.state.restored
        assert [who.incarnation for who in each.state.members] == [1, 1]
    chief.barrier.remove_barrier()
    assert worker.barrier.wait_removed(PATIENCE_SECONDS)


def test_without_its_home_server_a_member_raises_and_is_woken_when_it_restarts(home: Home) -> None:
    chief = home.join(0)
    assert hears(chief, lambda _: chief.is_connected)
    home.process.kill()
    assert hears(chief, lambda _: not chief.is_connected)
    with pytest.raises(UnavailableError, match="worker 0 is not connected to the coordinator on the home server"):
        chief.require_connected()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(hears, chief, lambda state: state.step_offset == 7)
        home.restart()
        chief.set_step_offset(7)
        assert waiting.result()
    assert hears(chief, lambda _: chief.is_connected)


def test_a_member_that_leaves_while_the_home_server_is_unavailable_does_not_wait_for_it(home: Home) -> None:
    chief = home.join(0)
    home.process.kill()
    begun = time.monotonic()
    chief.close()
    assert time.monotonic() - begun < PATIENCE_SECONDS


def test_garbage_on_the_port_disturbs_no_member(home: Home) -> None:
    chief = home.join(0)
    host, port = home.process.address.rsplit(":", 1)
    for content in (b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 4096, b"\0" * 65536):
        with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as stranger, suppress(OSError):
            stranger.sendall(content)
    chief.set_step_offset(5)
    assert home.join(1).state.step_offset == 5
    for method, request in (
        ("Change", messages.ChangeRequest()),
        ("LoadJob", messages.LoadJobRequest(content=b"{")),
        ("LoadJob", messages.LoadJobRequest(content=b"[1]")),
        ("GiveBack", messages.GiveBackRequest(queue="none", progress=b"\xff")),
        ("FoundFiles", messages.FoundFilesRequest(queue="none")),
        ("TakeFile", messages.TakeFileRequest(turn=-1, num_look_ups=-1, worker=-3)),
    ):
        with pytest.raises(OpError):
            chief._line.ask(method, request)
    assert chief.is_connected


@pytest.mark.slow
def test_a_lost_worker_is_adopted_when_its_full_lease_has_expired(home: Home) -> None:
    files = ["a", "b", "c"]
    chief = home.join(0, lease_seconds=1.0)
    worker = home.start(1, "job.file_queue(['a', 'b', 'c']).take(1, 0); say('took'); " + SAY_HOW_IT_ENDS, lease=1.0)
    assert worker.line() == "took"
    assert chief.adopt_worker() is None, "it is alive"
    worker.stop()
    assert hears(chief, lambda state: state.adoptable == {1})
    assert chief.adopt_worker() == 1
    assert chief.adopt_worker() is None, "nobody adopts what is adopted"
    found = chief.state.member("worker", 1)
    assert found is not None
    assert (found.adopted_by, found.address, found.incarnation) == (0, "here:0", 2)
    worker.go_on()
    assert worker.line()[0] == "AbortedError"
    queue = chief.file_queue(files)
    first = queue.take(1, 0)
    assert first is not None
    assert first.path == "a"
    with pytest.raises(
        AlreadyExistsError, match="worker 1 was lost, and worker 0 at here:0 trains the rest of its input"
    ):
        home.join(1, lease_seconds=1.0)
    chief.release_worker(1, finished=False)
    assert hears(chief, lambda state: state.adoptable == {1}), "another may go on, after a lease"
    assert chief.adopt_worker() == 1
    chief.release_worker(1, finished=True)
    assert chief.state.finished == {1}
    with pytest.raises(FailedPreconditionError, match="worker 0 has not adopted worker 1, or has lost it since"):
        chief.release_worker(1, finished=True)


@pytest.mark.slow
def test_adopted_numbers_are_free_when_their_worker_is_lost(home: Home) -> None:
    chief = home.join(0, num_workers=3, lease_seconds=1.0)
    lost = home.start(
        1, "job.file_queue(['a', 'b']).take(1, 0); say('took'); " + WAIT_FOR_STOP, num_workers=3, lease=0.5
    )
    assert lost.line() == "took"
    lost.kill()
    assert hears(chief, lambda state: state.adoptable == {1})
    adopter = home.start(2, "say(job.adopt_worker()); " + WAIT_FOR_STOP, num_workers=3, lease=0.5)
    assert adopter.line() == 1
    assert hears(chief, lambda state: not state.lost)
    adopter.kill()
    assert hears(chief, lambda state: state.adoptable == {1})


@pytest.mark.slow
def test_more_members_than_the_server_has_threads_receive_changes(home: Home) -> None:
    chief = home.join(0, num_workers=100)
    members = [home.join(index, num_workers=100) for index in range(1, 100)]
    for number in range(1, 4):
        chief.set_step_offset(number)

        def has_it(state: JobState, number: int = number) -> bool:
            return state.step_offset == number

        assert all(hears(each, has_it) for each in members)
