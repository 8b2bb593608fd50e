"""Supervision of a job: which processes run, which are restarted, when it is over. Without processes or a clock."""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from monolith.config import Config, config
from monolith.launch.role import DONE, INTERRUPTED, TRY_AGAIN, Ending, RestartConfig, ending_of, told_ending

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monolith.launch.role import Role, RoleKind


@config
class ShutdownConfig(Config):
    """How long a launcher waits for processes that are to end."""

    server_seconds: float = 10.0
    """For servers after the end of the last worker, which requests them to stop; then they get SIGTERM."""
    stop_seconds: float = 300.0
    """For workers that stop and save because another one failed; then they are killed. A stop that a person requested
    has no limit: a second request kills.
    """
    kill_seconds: float = 15.0
    """From SIGTERM of a server to its end, and for workers that cannot save because a server or the chief failed; then
    they are killed.
    """

    def __post_init__(self) -> None:
        for name in ("server_seconds", "stop_seconds", "kill_seconds"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"patience: {name} must be >= 0, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Start:
    """Start the process of a role."""

    role: Role


@dataclass(frozen=True, slots=True)
class Send:
    """Send a signal to a role; SIGKILL also goes to all processes that the role started."""

    role: Role
    number: signal.Signals


@dataclass(frozen=True, slots=True)
class Say:
    """Show a message to the user."""

    text: str


Action: TypeAlias = Start | Send | Say


class _State(enum.Enum):
    WAITING = "waiting"
    """To be started, immediately or after a pause."""
    ALIVE = "alive"
    OVER = "over"


@dataclass(slots=True)
class _Life:
    """State of a role."""

    state: _State = _State.WAITING
    start_at: float = 0.0
    started_at: float = 0.0
    deaths: int = 0
    """Deaths in a row."""


@dataclass(slots=True)
class _Deadline:
    """Signal for the processes that have not ended by a given time."""

    at: float
    number: signal.Signals
    kinds: tuple[RoleKind, ...]


@dataclass
class Supervision:
    """State machine of a job: its owner reports timestamped events, and executes the actions of `due` in order.

    1. All roles are started. A role that dies is restarted according to `RestartConfig`; a role that fails ends the
       job.
    2. The job is over when all workers and all servers have ended. The last worker stops the servers; servers that
       outlast `ShutdownConfig` are signalled.
    3. A stop goes to the workers, which save together and end; dead servers are still restarted for that, workers are
       not. A second stop kills.

    A server that a signal ended gracefully is restarted like one that died: only the chief ends servers permanently.
    """

    roles: tuple[Role, ...]
    policy: RestartConfig = field(default_factory=RestartConfig)
    patience: ShutdownConfig = field(default_factory=ShutdownConfig)

    def __post_init__(self) -> None:
        self.restarts = 0
        """Restarts of all roles so far."""
        self.failure: int | None = None
        """Exit code of the first role that failed."""
        self._lives = {role: _Life() for role in self.roles}
        self._actions: list[Action] = []
        self._stops = 0
        self._was_stopped = False
        self._deadlines: list[_Deadline] = []

    @property
    def is_over(self) -> bool:
        """Whether no process is left and none will be started."""
        return all(life.state is _State.OVER for life in self._lives.values())

    @property
    def is_stopping(self) -> bool:
        """Whether the job ends before its input does."""
        return self._stops > 0 or self.failure is not None

    @property
    def exit_code(self) -> int:
        """Exit code of the job: that of a failed role, 130 if it was stopped, else 0."""
        if self.failure is not None:
            return self.failure
        return INTERRUPTED if self._was_stopped else DONE

    def num_alive(self, kind: RoleKind) -> int:
        """Returns the number of live processes of a kind."""
        return sum(life.state is _State.ALIVE for life in self._of(kind).values())

    def next_deadline(self) -> float | None:
        """Returns the time at which `due` has something to do if nothing happens before, or None."""
        waiting = [life.start_at for life in self._lives.values() if life.state is _State.WAITING]
        return min([*waiting, *(deadline.at for deadline in self._deadlines)], default=None)

    def due(self, now: float) -> list[Action]:
        """Returns the actions for now. A role to be started counts as alive from here on."""
        for deadline in [deadline for deadline in self._deadlines if deadline.at <= now]:
            self._deadlines.remove(deadline)
            self._end_late(deadline, now)
        for role, life in self._lives.items():
            if life.state is _State.WAITING and life.start_at <= now:
                life.state, life.started_at = _State.ALIVE, now
                self._actions.append(Start(role))
        actions, self._actions = self._actions, []
        return actions

    def ended(self, role: Role, exit_code: int, now: float, *, reason: str | None = None) -> None:
        """Records the end of a process; `reason` describes it where the exit code does not."""
        life, ending = self._lives[role], ending_of(exit_code)
        if ending is Ending.FAILED:
            self._fail(role, exit_code, told_ending(exit_code), now)
        elif self._is_missed(role, ending):
            self._restart(role, exit_code, told_ending(exit_code) if reason is None else reason, now)
        else:
            life.state = _State.OVER
            self._was_stopped |= role.kind == "worker" and ending is not Ending.DONE
        self._look_at_servers(now)

    def stop(self, now: float) -> None:
        """Records a request to end the job: workers save and end; a second request kills all processes."""
        self._stops += 1
        self._was_stopped |= self._are_workers_left()
        if self._stops > 1:
            self._say("killing all processes; what was not saved is lost")
            self._kill(("ps", "worker"))
        elif self.failure is None:
            self._say("stopping: workers save and end; once more kills them")
            self._end_workers()
        self._look_at_servers(now)

    def _is_missed(self, role: Role, ending: Ending) -> bool:
        """Returns whether a role must be restarted; a stopping job needs its servers for the last save."""
        if ending is Ending.DONE or (ending is Ending.STOPPED and role.kind == "worker"):
            return False
        if self._stops > 1 or self.failure is not None:
            return False
        return self._are_workers_left() if role.kind == "ps" else not self._stops

    def _restart(self, role: Role, exit_code: int, reason: str, now: float) -> None:
        life = self._lives[role]
        well = now - life.started_at >= self.policy.healthy_seconds
        life.deaths = 1 if well else life.deaths + 1
        if life.deaths > self.policy.limit:
            code = 128 - exit_code if exit_code < 0 else TRY_AGAIN
            self._fail(role, code, f"{reason}, {life.deaths} times in a row", now)
            return
        pause = self.policy.pause_seconds(life.deaths)
        life.state, life.start_at = _State.WAITING, now + pause
        self.restarts += 1
        self._say(f"{role} {reason}; it is started again{f' in {pause:g} s' if pause else ''}")

    def _fail(self, role: Role, code: int, reason: str, now: float) -> None:
        self._lives[role].state = _State.OVER
        if self.failure is not None:
            self._say(f"{role} {reason}")
            return
        self.failure = code
        if not self._are_workers_left():
            self._say(f"{role} {reason}")
            return
        saving = role.kind == "worker" and role.index != 0  # the chief saves, and ends the servers when it fails
        self._say(f"{role} {reason}: the job ends{', and the other workers save what they can' if saving else ''}")
        self._end_workers()
        patience = self.patience.stop_seconds if saving else self.patience.kill_seconds
        self._deadlines.append(_Deadline(now + patience, signal.SIGKILL, ("worker",)))

    def _end_workers(self) -> None:
        for role, life in self._of("worker").items():
            if life.state is _State.ALIVE:
                self._actions.append(Send(role, signal.SIGINT))
            life.state = _State.OVER if life.state is _State.WAITING else life.state

    def _look_at_servers(self, now: float) -> None:
        """Gives servers some time to end by themselves, after the last worker has ended."""
        if self._are_workers_left() or self._stops > 1:
            return
        for life in self._of("ps").values():
            life.state = _State.OVER if life.state is _State.WAITING else life.state
        patience = 0.0 if self.is_stopping else self.patience.server_seconds
        deadlines = [deadline for deadline in self._deadlines if deadline.kinds == ("ps",)]
        for deadline in deadlines:
            deadline.at = min(deadline.at, now + patience) if deadline.number is signal.SIGTERM else deadline.at
        if not deadlines and self.num_alive("ps"):
            self._deadlines.append(_Deadline(now + patience, signal.SIGTERM, ("ps",)))

    def _end_late(self, deadline: _Deadline, now: float) -> None:
        late = [role for kind in deadline.kinds for role in self._of(kind) if self._lives[role].state is _State.ALIVE]
        if late and deadline.number is signal.SIGKILL:
            self._say(f"killing {', '.join(map(str, late))}: still there after the time to end")
        self._actions += [Send(role, deadline.number) for role in late]
        if deadline.number is not signal.SIGKILL:
            self._deadlines.append(_Deadline(now + self.patience.kill_seconds, signal.SIGKILL, deadline.kinds))

    def _kill(self, kinds: Iterable[RoleKind]) -> None:
        self._deadlines.clear()
        for role in [role for kind in kinds for role in self._of(kind)]:
            life = self._lives[role]
            if life.state is _State.ALIVE:
                self._actions.append(Send(role, signal.SIGKILL))
            life.state = _State.OVER if life.state is _State.WAITING else life.state

    def _are_workers_left(self) -> bool:
        return any(life.state is not _State.OVER for life in self._of("worker").values())

    def _of(self, kind: RoleKind) -> dict[Role, _Life]:
        return {role: life for role, life in self._lives.items() if role.kind == kind}

    def _say(self, text: str) -> None:
        self._actions.append(Say(text))
