"""The end of a worker of a job: whom it waits for, and when it adopts the input of a lost worker."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from monolith.errors import AbortedError, OpError

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.job import JobState
    from monolith.train.session import Session
    from monolith.train.strategies.servers import ParameterServers
    from monolith.train.strategies.strategy import EndedBy

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_LINE_SECONDS = 60.0


class JobEnd:
    """The end of a worker that has no more to train. Only the training thread may use it.

    Each worker trains an input of its own. The chief waits for all workers, and they for its last save: until then the
    loss of a server may roll all back to a checkpoint, and all workers train again.
    """

    def __init__(self, part: ParameterServers) -> None:
        self._part = part
        self._adopted: int | None = None

    def has_more(self, session: Session, ended_by: EndedBy, *, while_waiting: Callable[[], None]) -> bool:
        """Returns whether there is more to train: the input of a lost worker. Otherwise waits until this one may end.

        All pushes of this worker are applied by then.
        """
        session.settle()
        client = self._part.client
        if ended_by == "data":
            self._finish()
            if self._adopt(session):
                return True
        else:
            client.leave()
        if self._part.is_chief:
            has_more = self._wait(session, while_waiting, may_adopt=ended_by == "data")
            self._take_steps(session)
            return has_more
        return ended_by == "data" and self._wait_for_the_end(session)

    def begin_again(self, session: Session) -> None:
        """Resets the state for a rebuilt session, which trains its own unfinished input before that of others."""
        if self._adopted is not None:
            with suppress(OpError):  # a restarted coordinator has no record of it
                self._part.client.release_worker(self._adopted, finished=False)
            self._adopted = None
            session.set_worker(self._part.client.index)

    def _take_steps(self, session: Session) -> None:
        """Sets the step of the chief's last checkpoint to the one that all workers have reached."""
        state = session.state
        state.global_step = max(state.global_step, self._part.client.state.global_step)

    def _finish(self) -> None:
        if self._adopted is None:
            self._part.client.finish()
            return
        self._part.client.release_worker(self._adopted, finished=True)
        self._adopted = None

    def _adopt(self, session: Session) -> bool:
        number = self._part.client.adopt_worker()
        if number is None:
            return False
        _log.warning(
            "worker %d is no longer in the job: worker %d trains the rest of its input", number, self._part.client.index
        )
        self._adopted = number
        session.adopt_worker(number)
        return True

    def _wait_for_the_end(self, session: Session) -> bool:
        """Waits for the last save after the end of the input. Returns True if it has adopted a lost worker.

        Raises:
            AbortedError: all workers were rolled back to a checkpoint meanwhile.
            UnavailableError: server 0 is unreachable.
        """
        clock, client = self._part.clock, self._part.client
        client.flags.set(client.index, False)  # barriers do not wait for it
        generation, gone_since = client.state.generation, None
        while not (client.state.ended or self._part.stop_requested):
            client.require_connected()
            if client.state.generation != generation:
                raise AbortedError(f"worker {client.index}: all servers were put back to a checkpoint; it trains again")
            if client.state.adoptable and self._adopt(session):
                return True
            now = clock.monotonic()
            gone_since = None if _is_alive(client.state, 0) else gone_since if gone_since is not None else now
            if gone_since is not None and now - gone_since >= self._part.settings.chief_timeout_seconds:
                _log.warning("worker %d: ends without the chief, gone for %.0f s", client.index, now - gone_since)
                return False
            client.wait_for(_changed_since(client.state.version), timeout_seconds=_LOOK_SECONDS)
        return False

    def _wait(self, session: Session, while_waiting: Callable[[], None], *, may_adopt: bool) -> bool:
        """Waits, as the chief, for the other workers. Returns True if it has adopted a lost worker."""
        clock, client = self._part.clock, self._part.client
        next_line = clock.monotonic()
        gone_since = None
        while missing := _unfinished(client.state, may_adopt=may_adopt):
            client.require_connected()
            now = clock.monotonic()
            if may_adopt and client.state.adoptable and self._adopt(session):
                return True
            alive = [number for number in missing if _is_alive(client.state, number)]
            gone_since = None if alive else gone_since if gone_since is not None else now
            # A stopping job does not restart workers.
            patience = 0.0 if self._part.stop_requested else self._part.settings.chief_timeout_seconds
            if gone_since is not None and now - gone_since >= patience:
                _log.warning("ending without workers %s, gone for %.0f s", missing, now - gone_since)
                return False
            if now >= next_line:
                _log.info("waiting for workers %s to end", missing)
                next_line = now + _LINE_SECONDS
            client.wait_for(_changed_since(client.state.version), timeout_seconds=_LOOK_SECONDS)
            self._take_steps(session)
            while_waiting()
        return False


def _unfinished(state: JobState, *, may_adopt: bool) -> list[int]:
    """Returns the workers that may still push; in a stopping job lost workers do not restart.

    Includes the shares of removed workers while another worker trains them, or may start to.
    """
    done = state.finished | state.left
    workers = [
        number
        for number in range(1, state.num_workers)
        if number not in done and (_is_alive(state, number) or not state.stop_requested)
    ]
    adopted = {member.index for member in state.members if member.role == "worker" and member.alive}
    others = adopted | (state.adoptable if may_adopt else set())
    return workers + sorted(number for number in others - done if number >= state.num_workers)


def _is_alive(state: JobState, number: int) -> bool:
    member = state.member("worker", number)
    return member is not None and member.alive


def _changed_since(version: int) -> Callable[[JobState], bool]:
    return lambda state: state.version != version
