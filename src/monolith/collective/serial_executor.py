"""The line of a process: a serial executor of collective calls, which run in the order of their submission.

Ranks that exchange different data at the same time hang or crash. So all calls of this process over one process group
go through one line, one after another, whichever thread makes them: a hook, the averaging of gradients and the exchange
of rows cannot interleave. A process has two lines: one for training, and one for background work such as saving.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

import torch

from monolith.collective.wire import ExchangeError, Headers
from monolith.errors import DeadlineExceededError, FailedPreconditionError, OpError, UnavailableError
from monolith.forks import fork_safe

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.collective.wire import Wire

T = TypeVar("T")


class RaisedByAllError(Exception):
    """Wraps an error that every rank raises at this point of this call, so that the line can continue after it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class LineCall(Generic[T]):
    """A call of a line: queued, running or done. A `monolith.tables.Pending`."""

    def __init__(self, call: Callable[[], T], what: object) -> None:
        self.call = call
        self.what = what
        self._is_done = False
        self._open = threading.Lock()  # an `Event` costs more than the rest of a call
        self._open.acquire()
        self._value: T | None = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Returns True iff `result` returns without waiting."""
        return self._is_done

    def result(self, timeout_seconds: float | None = None) -> T:
        """Returns the result of the call, or raises its error.

        Raises:
            DeadlineExceededError: It was not done within `timeout_seconds`; it keeps running.
        """
        if not self._is_done:
            if not self._open.acquire(timeout=-1 if timeout_seconds is None else max(0.0, timeout_seconds)):
                raise DeadlineExceededError(f"collective: {self.what}: not done in {timeout_seconds} s")
            self._open.release()  # for the next waiting thread
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value] # the call has set it

    def finish(self, value: T | None, error: BaseException | None = None) -> None:
        """Sets the result and wakes the waiting threads."""
        self._value, self._error = value, error
        self._is_done = True
        self._open.release()


class SerialExecutor:
    """Calls over one wire, one at a time, in the order of `submit` and `run`. Thread-safe.

    A call that fails ends the line, since the other ranks wait for the data of this one: they get an error immediately,
    and every later call is rejected. Only an error that all ranks raise together (`RaisedByAllError`) does not end the
    line.

    Args:
        name: Name of the line, for messages.
        wire: Used only by the calls of this line.
    """

    def __init__(self, name: str, wire: Wire) -> None:
        self.name = name
        self.wire = wire
        self.headers = Headers(wire)
        """Headers of its calls; used by `LockStep`."""
        self._process = os.getpid()
        self._changed = threading.Condition(fork_safe(threading.Lock()))
        # Below: guarded by `_changed`.
        self._waiting: deque[LineCall[object]] = deque()
        self._running: int | None = None
        """The thread that makes the current call."""
        self._end: OpError | None = None
        """Why further calls are rejected."""
        self._thread: threading.Thread | None = None

    def submit(self, call: Callable[[], T], what: object) -> LineCall[T]:
        """Queues a call, which the line's own thread makes.

        In a run of one rank the call is made immediately. A call made from inside a call of the line is part of that
        one, and is made immediately, too.

        Args:
            call: The function to call; it may use the wire.
            what: Short description, for messages.
        """
        line_call = LineCall(call, what)
        if self.wire.size == 1 or self._is_inside():
            self._finish(line_call, self.run)
            return line_call
        with self._changed:
            self._require_open()
            self._waiting.append(line_call)  # type: ignore[arg-type] # the thread ignores the type of the result
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=f"monolith-{self.name}", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return line_call

    def run(self, call: Callable[[], T], what: object) -> T:
        """Makes a call in its order and returns its result; in this thread, if no other call precedes it."""
        if self._is_inside():
            return call()
        with self._changed:
            self._require_open()
            while self.wire.size == 1 and self._running is not None:
                self._changed.wait()
                self._require_open()
            is_next = self._running is None and not self._waiting
            if is_next:
                self._running = threading.get_ident()
        return self._make(call, what) if is_next else self.submit(call, what).result()

    def close(self) -> None:
        """Ends the line after the current call; queued calls are rejected. Idempotent."""
        if os.getpid() != self._process:
            return  # a forked child has no thread of the line, and must not close the connections
        with self._changed:
            self._refuse_all(FailedPreconditionError(f"collective: the {self.name} line is shut down"))
            thread = self._thread
            while self._running not in {None, threading.get_ident()}:
                self._changed.wait()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self.wire.close()

    def _is_inside(self) -> bool:
        return self._running == threading.get_ident() and os.getpid() == self._process

    def _require_open(self) -> None:
        if self._end is not None:
            raise type(self._end)(self._end.message)
        if os.getpid() == self._process:
            return
        if self.wire.size > 1:
            raise FailedPreconditionError(
                f"collective: the {self.name} line belongs to the process that joined the run, and this one was forked "
                "from it; make the call there"
            )
        self._process, self._running = os.getpid(), None  # in a run of one rank, a forked child continues on its own

    def _serve(self) -> None:
        torch.get_num_threads()  # sets the thread limit of this thread's BLAS, too: else it uses all cores
        while True:
            with self._changed:
                while not (self._waiting and self._running is None):
                    if self._end is not None:
                        return
                    self._changed.wait()
                line_call = self._waiting.popleft()
                self._running = threading.get_ident()
            self._finish(line_call, self._make)

    def _finish(self, line_call: LineCall[T], make: Callable[[Callable[[], T], object], T]) -> None:
        try:
            value = make(line_call.call, line_call.what)
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            line_call.finish(None, error)
        else:
            line_call.finish(value)

    def _make(self, call: Callable[[], T], what: object) -> T:
        """Makes the current call, and frees the line."""
        try:
            return call()
        except RaisedByAllError as error:
            raise error.error from None
        except BaseException as error:
            if self.wire.size == 1:
                raise
            named = self._ended_by(error, what)
            if named is error:
                raise
            raise named from error
        finally:
            with self._changed:
                self._running = None
                self._changed.notify_all()

    def _ended_by(self, error: BaseException, what: object) -> BaseException:
        """Ends the line; returns the error as one of ours."""
        named = self._named(error, what)
        text = named.message if isinstance(named, OpError) else f"{type(named).__name__}: {named}"
        with self._changed:
            self._refuse_all(
                UnavailableError(
                    f"collective: the {self.name} line ended when {what} failed, and the other ranks cannot continue "
                    f"without this one; start the run again, as torchrun does. It failed with: {text}"
                )
            )
        self.wire.close()
        return named

    def _refuse_all(self, error: OpError) -> None:
        if self._end is None:
            self._end = error
        waiting = list(self._waiting)
        self._waiting.clear()
        for line_call in waiting:
            line_call.finish(None, type(self._end)(self._end.message))
        self._changed.notify_all()

    def _named(self, error: BaseException, what: object) -> BaseException:
        """Converts the error of an exchange to one of ours."""
        if not isinstance(error, ExchangeError):
            return error
        kind = DeadlineExceededError if "timed out" in str(error).lower() else UnavailableError
        return kind(
            f"collective: {what}: rank {self.wire.rank} of {self.wire.size} could not exchange it with the others; one "
            f"of them has ended or hangs, see its log: {error}"
        )
