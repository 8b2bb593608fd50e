"""Synchronizes the start and the end of the chief and the workers.

They share one flag each. The chief's flag is set when the model is restored, so that workers may train; a worker's flag
is set while it is alive, so that the chief does not end, and write the last checkpoint, before it.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Protocol

from monolith.clock import SystemClock, wait_until
from monolith.hook import Hook

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monolith.clock import Clock
    from monolith.hook import HookedSession

_log = logging.getLogger(__name__)

LOG_EVERY_SECONDS = 60.0
CHIEF_TIMEOUT_SECONDS = 1800.0


_WHERE_FLAGS_ARE = (
    "Give all of them the same `flags`: InProcessFlags(num_workers) for threads, monolith.ps.JobClient(...).flags for"
    " processes"
)


class SharedFlags(Protocol):
    """A flag per worker that all of them see. Thread-safe; those of a job (`JobClient`) are shared by processes."""

    def __len__(self) -> int: ...

    def set(self, index: int, value: bool) -> None:
        """Changes one flag."""

    def read(self) -> Sequence[bool]:
        """Returns a consistent copy of all flags."""

    def wait(
        self,
        predicate: Callable[[Sequence[bool]], bool],
        *,
        timeout_seconds: float | None,
        give_up: Callable[[], bool] | None = None,
    ) -> bool:
        """Blocks until the predicate holds and returns True; False on timeout or when `give_up` returned True."""


class InProcessFlags:
    """Flags for workers that are threads of this process; a condition guards them.

    Args:
        size: Number of flags; all begin as False.
        clock: Measures timeouts.
    """

    def __init__(self, size: int, *, clock: Clock | None = None) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._flags = [False] * size
        self._clock = clock or SystemClock()

    def __len__(self) -> int:
        return len(self._flags)

    def set(self, index: int, value: bool) -> None:
        """Changes one flag."""
        with self._changed:
            self._flags[index] = value
            self._changed.notify_all()

    def read(self) -> list[bool]:
        """Returns a consistent copy of all flags."""
        with self._changed:
            return list(self._flags)

    def wait(
        self,
        predicate: Callable[[Sequence[bool]], bool],
        *,
        timeout_seconds: float | None,
        give_up: Callable[[], bool] | None = None,
    ) -> bool:
        """Blocks until the predicate holds and returns True; False on timeout or when `give_up` returned True."""
        return wait_until(
            lambda: predicate(self._flags),
            changed=self._changed,
            clock=self._clock,
            timeout_seconds=timeout_seconds,
            give_up=give_up,
        )


class SyncHelper:
    """Meaning of the flags: flag 0, the model is restored; flag i, worker i is alive.

    Args:
        num_workers: Workers of the job, including the chief.
        is_chief: Whether this is the chief's helper, which may create the flags; workers must be given them.
        flags: The flags; by default flags of this process, and then all workers share this helper.
    """

    def __init__(self, num_workers: int, is_chief: bool = True, *, flags: SharedFlags | None = None) -> None:
        if num_workers < 1:
            raise ValueError(f"SyncHelper: num_workers counts the chief and must be >= 1, got {num_workers}")
        if not is_chief and flags is None:
            raise ValueError(
                "SyncHelper: a worker needs flags that the chief changes, got none; with flags of its own it would wait"
                f" for ever. {_WHERE_FLAGS_ARE}"
            )
        self._flags = InProcessFlags(num_workers) if flags is None else flags
        if len(self._flags) != num_workers:
            raise ValueError(f"SyncHelper: expected a flag for each of {num_workers} workers, got {len(self._flags)}")

    def mark_restore_done(self) -> None:
        """Sets the chief's flag: the model is restored, and workers may train."""
        self._flags.set(0, True)

    def get_restore_status(self) -> bool:
        """Returns whether the chief has restored the model."""
        return self._flags.read()[0]

    def start_worker(self, worker_index: int) -> None:
        """Marks a worker as alive."""
        self._flags.set(self._checked(worker_index), True)

    def finish_worker(self, worker_index: int) -> None:
        """Marks a worker as ended."""
        self._flags.set(self._checked(worker_index), False)

    def get_alive_workers(self) -> list[int]:
        """Returns the indices of the workers that are alive, without the chief."""
        return [index for index, alive in enumerate(self._flags.read()) if alive and index > 0]

    def get_num_alive_workers(self) -> int:
        """Returns the number of workers that are alive, without the chief."""
        return len(self.get_alive_workers())

    def wait_restored(self, timeout_seconds: float | None, give_up: Callable[[], bool] | None = None) -> bool:
        """Blocks until the chief has restored; False on timeout or when `give_up` returned True."""
        return self._flags.wait(lambda flags: flags[0], timeout_seconds=timeout_seconds, give_up=give_up)

    def wait_ended(self, timeout_seconds: float | None) -> bool:
        """Blocks until no worker is alive; False on timeout."""
        return self._flags.wait(lambda flags: not any(flags[1:]), timeout_seconds=timeout_seconds)

    def _checked(self, worker_index: int) -> int:
        if not 1 <= worker_index < len(self._flags):
            raise ValueError(f"SyncHelper: index of a worker must be in [1, {len(self._flags)}), got {worker_index}")
        return worker_index


class ChiefSyncHook(Hook):
    """Lets workers begin once the chief's session is ready, and waits for them at its end.

    Args:
        sync_helper: The flags.
        timeout_seconds: How long to wait; workers that are still alive after it are logged and not waited for.
    """

    def __init__(self, sync_helper: SyncHelper, timeout_seconds: float = CHIEF_TIMEOUT_SECONDS) -> None:
        self._helper = sync_helper
        self.timeout_seconds = timeout_seconds

    def after_create_session(self, session: HookedSession) -> None:  # noqa: ARG002 - a hook's signature
        """Lets workers train: the restoring hook runs before this one, so the model is restored."""
        self._helper.mark_restore_done()

    def end(self, session: HookedSession) -> None:  # noqa: ARG002 - a hook's signature
        """Waits until no worker is alive."""
        rest = self.timeout_seconds
        while alive := self._helper.get_alive_workers():
            if rest <= 0:
                _log.warning("ending without workers %s, alive after %g s", alive, self.timeout_seconds)
                return
            _log.info("waiting for workers %s to end", alive)
            self._helper.wait_ended(min(rest, LOG_EVERY_SECONDS))
            rest -= LOG_EVERY_SECONDS


class WorkerSyncHook(Hook):
    """Marks a worker as alive while its session is open, and blocks it until the chief has restored.

    Args:
        worker_index: Index of the worker, from 1 on.
        sync_helper: The flags.
    """

    def __init__(self, worker_index: int, sync_helper: SyncHelper) -> None:
        self._index = sync_helper._checked(worker_index)  # noqa: SLF001 - refused here, not when training begins
        self._helper = sync_helper

    def after_create_session(self, session: HookedSession) -> None:
        """Waits for the chief; a stop of the session ends the wait."""
        # Also when the session fails: the chief would wait half an hour for a worker that has ended.
        session.on_close(lambda: self._helper.finish_worker(self._index))
        self._helper.start_worker(self._index)
        while not self._helper.get_restore_status() and not session.stop_requested:
            _log.info("worker %d waits until the chief has restored the model", self._index)
            self._helper.wait_restored(LOG_EVERY_SECONDS, lambda: session.stop_requested)

    def end(self, session: HookedSession) -> None:  # noqa: ARG002 - a hook's signature
        """Lets the chief end."""
        self._helper.finish_worker(self._index)


class TrainingHooksHelper:
    """The hooks of one worker of a job; none for a single worker.

    Args:
        enable_sync: Whether workers begin and end together.
        num_workers: Workers of the job, including the chief.
        worker_idx: Index of this worker; 0 is the chief.
        chief_timeout_seconds: How long the chief waits for the other workers at the end.
        flags: Flags that the helpers of all workers share; required with several workers.

    Raises:
        ValueError: several workers are to synchronize, and `flags` is None.
    """

    def __init__(
        self,
        enable_sync: bool,
        num_workers: int,
        worker_idx: int = 0,
        chief_timeout_seconds: float = CHIEF_TIMEOUT_SECONDS,
        *,
        flags: SharedFlags | None = None,
    ) -> None:
        if not 0 <= worker_idx < num_workers:
            raise ValueError(f"TrainingHooksHelper: worker_idx must be in [0, {num_workers}), got {worker_idx}")
        self.training_hooks: tuple[Hook, ...] = ()
        """The hooks for the session of a worker."""
        self.training_chief_hooks: tuple[Hook, ...] = ()
        """The hooks for the session of the chief."""
        if not enable_sync or num_workers == 1:
            return
        if flags is None:
            raise ValueError(
                f"TrainingHooksHelper: worker {worker_idx} of {num_workers} starts and ends with the others, which"
                f" needs flags, got none. {_WHERE_FLAGS_ARE}; with enable_sync=False each worker runs on its own"
            )
        helper = SyncHelper(num_workers, worker_idx == 0, flags=flags)
        if worker_idx == 0:
            self.training_chief_hooks = (ChiefSyncHook(helper, chief_timeout_seconds),)
        else:
            self.training_hooks = (WorkerSyncHook(worker_idx, helper),)
