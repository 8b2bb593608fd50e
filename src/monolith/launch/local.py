"""A job on this machine: a process for every role, which ends with the launcher, and what all roles share."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import selectors
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from monolith import environment
from monolith.clock import SystemClock
from monolith.cluster import discovery_name, is_scheduled
from monolith.launch.job_view import JobView, MergedLog
from monolith.launch.process import RoleProcess
from monolith.launch.supervision import Say, Send, ShutdownConfig, Start, Supervision
from monolith.observe import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monolith.launch.plan import LaunchPlan
    from monolith.launch.process import Body
    from monolith.launch.role import Role
    from monolith.launch.supervision import Action

_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class LocalLauncher:
    """Runs a job on this machine, in the main thread: `run` returns when all its processes have ended.

    Each role has a process group of its own, and the kernel kills it when this process ends, for whatever reason. The
    first SIGINT, SIGTERM or SIGHUP makes workers save and end, the second kills all.

    Args:
        plan: The job. Its options specify how the roles find each other; see `local_job`.
        patience: How long processes may take to end.
        file: File for log and progress; standard error by default.
        has_progress: Whether to show a progress line.
        body: Function that a role runs as a fork of this process, which must be only a launcher: a start then costs no
            imports. None: every role is a program of its own.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        *,
        patience: ShutdownConfig | None = None,
        file: TextIO | None = None,
        has_progress: bool = True,
        body: Body | None = None,
    ) -> None:
        self._plan = plan
        self._body = body
        self._supervision = Supervision(plan.roles, plan.restarts, ShutdownConfig() if patience is None else patience)
        self._file = cast("TextIO", _Unbreakable(sys.stderr if file is None else file))
        self._has_progress = has_progress
        self._clock = SystemClock()
        self._processes: dict[Role, RoleProcess] = {}
        self._selector: selectors.BaseSelector
        self._signals: list[int] = []
        self.result: dict[str, Any] = {}
        """Final report of the chief: ``global_step``, ``rows`` and so on; empty if there was none."""

    @property
    def restarts(self) -> int:
        """Number of restarts of all roles."""
        return self._supervision.restarts

    def run(self) -> int:
        """Runs the job to its end.

        Returns:
            0: done; 130: stopped by a signal, and saved; else the exit code of the role that failed.

        Raises:
            ValueError: This is not the main thread, which receives signals.
        """
        with contextlib.ExitStack() as stack:
            bar = stack.enter_context(Progress(total=self._plan.max_steps, file=self._file))
            self._selector = stack.enter_context(selectors.DefaultSelector())
            stack.enter_context(self._listening())
            stack.callback(self._end_all)
            has_colours = self._file.isatty() and not environment.get("NO_COLOR")
            log = MergedLog(bar.write, self._plan.roles, has_colours=has_colours)
            view = JobView(bar if self._has_progress else None, self._supervision)
            while True:
                for action in self._supervision.due(self._clock.monotonic()):
                    self._do(action, log)
                if self._supervision.is_over:
                    break
                self._wait(log, view)
        self.result = view.result
        return self._supervision.exit_code

    def _do(self, action: Action, log: MergedLog) -> None:
        match action:
            case Start(role):
                process = RoleProcess(role, self._plan, self._body)
                self._processes[role] = process
                self._selector.register(process.output, selectors.EVENT_READ, role)
                self._selector.register(process.messages, selectors.EVENT_READ, role)
            case Send(role, number):
                if role in self._processes:
                    self._processes[role].send(number)
            case Say(text):
                log.launcher_line(text)

    def _wait(self, log: MergedLog, view: JobView) -> None:
        """Waits for an event: output, a message, the end of a process, a signal, or a deadline."""
        at = self._supervision.next_deadline()
        timeout = None if at is None else max(at - self._clock.monotonic(), 0.0)
        for key, _ in self._selector.select(timeout):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.recv(1 << 12)
            elif key.data in self._processes:
                self._hear(self._processes[key.data], key.fd, log, view)
        while self._signals:
            number = signal.Signals(self._signals.pop(0))
            log.launcher_line(f"got {number.name}")
            self._supervision.stop(self._clock.monotonic())
        for process in [process for process in self._processes.values() if process.has_ended]:
            self._bury(process, log, view)

    def _hear(self, process: RoleProcess, descriptor: int, log: MergedLog, view: JobView) -> bool:
        """Processes pending input of a descriptor; returns whether more may come."""
        if descriptor == process.output:
            lines, is_open = process.read_lines()
            for line in lines:
                log.line(process.role, line)
            has_read = bool(lines)
        else:
            messages, is_open = process.read_messages()
            for message in messages:
                view.heard(process.role, message)
            has_read = bool(messages)
        if not is_open:
            self._selector.unregister(descriptor)
        return is_open and has_read

    def _bury(self, process: RoleProcess, log: MergedLog, view: JobView) -> None:
        """Drains the output of a process that has ended, and releases it with all processes that it started."""
        for descriptor in (process.output, process.messages):
            while descriptor in self._selector.get_map() and self._hear(process, descriptor, log, view):
                pass
            with contextlib.suppress(KeyError):
                self._selector.unregister(descriptor)
        del self._processes[process.role]
        self._supervision.ended(process.role, process.close(), self._clock.monotonic())
        view.gone(process.role)

    def _end_all(self) -> None:
        for process in self._processes.values():
            process.close()
        self._processes.clear()

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Makes signals wake the loop. Signals that the launcher was started to ignore stay ignored, as under nohup."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.setblocking(False)
            self._selector.register(ours, selectors.EVENT_READ)
            handlers: dict[signal.Signals, Any] = {signal.SIGCHLD: lambda *_: None}
            for number in _ENDINGS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    handlers[number] = lambda received, _: self._signals.append(received)
            before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
            wakeup = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
            try:
                yield
            finally:
                signal.set_wakeup_fd(wakeup)
                for number, handler in before.items():
                    signal.signal(number, handler)


class _Unbreakable:
    """A file that ignores write errors: a closed terminal must not end the job."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.isatty = file.isatty

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._file.flush()


_THREADS = "OMP_NUM_THREADS"
_LOOPBACK = "127.0.0.1"


@contextlib.contextmanager
def local_job(plan: LaunchPlan) -> Iterator[LaunchPlan]:
    """A context manager for the plan of a job on this machine; given options for host, secret or discovery stay.

    Roles listen on loopback only, share a secret that only this user can read, and write their addresses to a folder of
    the job, which is removed at the end. Workers share the processors.

    Raises:
        ValueError: The discovery service gives the place of one process, and would give all roles the same one.
    """
    options = plan.options
    if options.is_set("discovery_type") and is_scheduled(options.discovery_type):
        name = discovery_name(options.discovery_type)
        raise ValueError(
            f"--discovery_type {name} selects which process of a job this one is; a launcher starts all of them: omit"
            " it, or omit the launcher"
        )
    with _folder() as folder:
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(f"{secrets.token_urlsafe(32)}\n", encoding="ascii")
        brought = {"host": _LOOPBACK, "token_file": str(token)}
        if not options.is_set("discovery_type"):
            brought |= {"discovery_type": "host", "discovery_dir": str(folder / "addresses")}
        yield dataclasses.replace(plan.with_options(brought), environment={**_threads(plan), **plan.environment})


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Yields a temporary folder. Only this block removes it, not the exit of a forked process."""
    folder = Path(tempfile.mkdtemp(prefix="monolith-job-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _threads(plan: LaunchPlan) -> dict[str, str]:
    """Divides the processors among the workers, unless configured otherwise: each worker would use all of them."""
    if plan.options.is_set("intra_op_parallelism_threads") or environment.get(_THREADS):
        return {}
    return {_THREADS: str(max(len(os.sched_getaffinity(0)) // plan.options.num_workers, 1))}
