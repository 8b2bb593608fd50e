"""A line by itself, over a wire that goes nowhere: order, ends, forks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from monolith.collective import RaisedByAllError, SerialExecutor
from monolith.collective.wire import ExchangeError, LoneWire
from monolith.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError, UnavailableError


class FakeWire(LoneWire):
    size = 2
    closed = 0

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def wire() -> FakeWire:
    return FakeWire()


@pytest.fixture
def line(wire: FakeWire) -> Iterator[SerialExecutor]:
    made = SerialExecutor("training", wire)
    yield made
    made.close()


def held(line: SerialExecutor) -> tuple[threading.Event, threading.Event]:
    """A call under way, by which the line is busy: set when it has begun, and what lets it end."""
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go_on.wait(60)

    line.submit(wait, "a long call")
    return begun, go_on


def raising(error: BaseException) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call


def test_an_idle_line_runs_a_call_in_the_calling_thread_and_a_busy_one_in_its_own(line: SerialExecutor) -> None:
    assert line.run(threading.get_ident, "who") == threading.get_ident()
    assert line.submit(threading.get_ident, "who").result() != threading.get_ident()
    begun, go_on = held(line)
    assert begun.wait(60)
    second = line.submit(threading.get_ident, "who")
    with pytest.raises(DeadlineExceededError, match=r"collective: who: not done in 0\.01 s"):
        second.result(timeout_seconds=0.01)
    go_on.set()
    assert line.run(threading.get_ident, "who") in {second.result(), threading.get_ident()}


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ExchangeError("Connection closed by peer"), UnavailableError, "read a: rank 0 of 2 could not.*closed by peer"),
        (ExchangeError("Timed out waiting 9ms"), DeadlineExceededError, "read a: rank 0 of 2 could not.*Timed out"),
        (FileNotFoundError("here alone"), FileNotFoundError, "here alone"),
        (RuntimeError("shapes, not ranks"), RuntimeError, "^shapes, not ranks$"),
    ],
)
@pytest.mark.parametrize("way", ["run", "submit"])
def test_a_call_that_fails_ends_the_line_and_names_itself(
    line: SerialExecutor, wire: FakeWire, error: Exception, kind: type[Exception], message: str, way: str
) -> None:
    begun, go_on = held(line)
    assert begun.wait(60)
    failing = threading.Event()

    def fail() -> None:
        failing.set()
        raise error

    first = line.submit(fail, "read a")
    waiting = line.submit(lambda: None, "behind it")
    go_on.set()
    with pytest.raises(kind, match=message):
        first.result(60)
    for refused in (lambda: waiting.result(60), lambda: getattr(line, way)(lambda: None, "later")):
        with pytest.raises(UnavailableError, match=r"the training line ended when read a failed.*start the run again"):
            refused()
    assert wire.closed == 1  # the others hear of it


def test_an_error_in_the_calling_thread_ends_the_line_too(line: SerialExecutor, wire: FakeWire) -> None:
    with pytest.raises(KeyboardInterrupt):
        line.run(raising(KeyboardInterrupt()), "a")
    with pytest.raises(UnavailableError, match=r"when a failed.*KeyboardInterrupt"):
        line.run(lambda: None, "b")
    assert wire.closed == 1


def test_an_error_of_all_ranks_does_not(line: SerialExecutor, wire: FakeWire) -> None:
    with pytest.raises(InvalidArgumentError, match="all say so"):
        line.run(raising(RaisedByAllError(InvalidArgumentError("all say so"))), "a")
    assert line.run(lambda: 3, "b") == 3
    assert wire.closed == 0


def test_alone_no_error_does_and_there_is_no_thread() -> None:
    line = SerialExecutor("training", LoneWire())
    pending = line.submit(raising(RuntimeError("mine")), "a")
    with pytest.raises(RuntimeError, match="mine"):
        pending.result()
    assert line.submit(threading.get_ident, "b").result() == threading.get_ident()


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_of_a_single_rank_keeps_running_though_its_parent_was_busy() -> None:
    line = SerialExecutor("training", LoneWire())
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go_on.wait(60)

    busy = threading.Thread(target=lambda: line.run(wait, "a long call"))
    busy.start()
    assert begun.wait(60)
    child = os.fork()
    if child == 0:
        os._exit(line.run(lambda: 7, "a"))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    go_on.set()
    busy.join(60)


def test_a_closed_line_refuses_what_waits_and_what_comes(line: SerialExecutor, wire: FakeWire) -> None:
    begun, go_on = held(line)
    assert begun.wait(60)
    waiting = line.submit(lambda: None, "behind it")
    closing = threading.Thread(target=line.close)
    closing.start()
    with pytest.raises(FailedPreconditionError, match="the training line is shut down"):
        waiting.result(60)
    with pytest.raises(FailedPreconditionError, match="the training line is shut down"):
        line.run(lambda: None, "later")
    assert wire.closed == 0  # the call under way goes on
    go_on.set()
    closing.join(60)
    assert wire.closed == 1
    assert line._thread is not None
    assert not line._thread.is_alive()


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_raises_when_it_uses_the_line_of_its_parent(line: SerialExecutor, wire: FakeWire) -> None:
    begun, go_on = held(line)
    assert begun.wait(60)
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(FailedPreconditionError, match="belongs to the process that joined the run"):
                line.run(lambda: None, "a")
            with pytest.raises(FailedPreconditionError, match="belongs to the process that joined the run"):
                line.submit(lambda: None, "a")
            line.close()  # returns, though the thread is not there
            os._exit(0 if wire.closed == 0 else 1)
        except BaseException:  # noqa: BLE001 - the child must not go on as the test process
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    go_on.set()
    assert line.run(lambda: 1, "b") == 1
