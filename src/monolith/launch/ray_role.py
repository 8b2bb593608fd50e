"""The actor of one role of a job on Ray: runs the command of the role in its own process."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import signal
import sys
import threading
import traceback
import uuid
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monolith import environment
from monolith.cluster.runtimes import load_ray
from monolith.launch.progress_pipe import PROGRESS_FD
from monolith.launch.role import INTERRUPTED, TRY_AGAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_log = logging.getLogger(__name__)
_FAILED = 1
_TELL_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class RoleSpec:
    """Settings of the process of a role: strings and numbers, so that any node can read them."""

    role: str
    job: str
    """Name of the job's actor."""
    namespace: str
    entry: str
    """``module:function`` that takes the arguments and returns the exit code."""
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str
    """Working directory of the launcher, used if it exists on the node."""
    search_path: tuple[str, ...] = ()
    """Module search path of the launcher; entries that exist on the node are appended to its own."""
    token: str | None = field(default=None, repr=False)
    """Secret of the job, unless the user gave a file with one."""
    takes_host: bool = True
    """Whether the role listens at the address of its node in Ray."""


class RoleActor:
    """The actor of one role. `run` belongs to the main thread of a process, where Python delivers signals.

    Ray restarts a process that died, and calls `run` again; every new process waits for the permission of the launcher
    first. If only the connection was lost, the second call returns the result of the first one.
    """

    def __init__(self, spec: RoleSpec) -> None:
        self._spec = spec
        self._exit_code: int | None = None

    def __repr__(self) -> str:
        return self._spec.role  # Ray shows this before every line of the process

    def run(self) -> int:
        """Runs the command of the role to its end, and returns its exit code."""
        if self._exit_code is None:
            self._exit_code = self._live()
        return self._exit_code

    def _live(self) -> int:
        ray, spec, life = load_ray(), self._spec, uuid.uuid4().hex
        job = ray.get_actor(spec.job, namespace=spec.namespace)
        ray.get(job.start.remote(spec.role, life))
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(_ended_by_signals())
                passing = partial(_pass_signals, ray, job, spec.role, life)
                threading.Thread(target=passing, name="ray-signals", daemon=True).start()
                arguments = self._prepared(ray, stack)
                stack.enter_context(_progress_told(partial(_tell, ray, job, spec.role)))
                exit_code = _exit_code_of(spec.entry, arguments)
        except _StoppedError:
            exit_code = INTERRUPTED
        if exit_code == TRY_AGAIN:
            # A new process is needed: this one exits as if it had died, and Ray starts the next.
            _tell(ray, job, spec.role, {"exit_code": exit_code})
            os._exit(exit_code)
        return exit_code

    def _prepared(self, ray: Any, stack: contextlib.ExitStack) -> list[str]:
        """Sets up this process like a process on the launcher's own machine."""
        spec = self._spec
        if Path(spec.folder).is_dir():
            os.chdir(spec.folder)
        sys.path += [path for path in spec.search_path if path not in sys.path and Path(path).exists()]
        for name, value in spec.environment.items():
            environment.put(name, value)
        arguments = list(spec.arguments)
        if spec.takes_host:
            arguments += ["--host", ray.util.get_node_ip_address()]
        if spec.token is not None:
            arguments += ["--token_file", stack.enter_context(_file_in_memory(f"{spec.token}\n"))]
        return arguments


@contextlib.contextmanager
def _file_in_memory(text: str) -> Iterator[str]:
    """Yields the name of a file that only this user can read, and that vanishes with this process."""
    descriptor = os.memfd_create("token")
    try:
        os.write(descriptor, text.encode("ascii"))
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


class _StoppedError(BaseException):
    """A signal arrived before the command had installed handlers."""


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Makes a signal without another handler end the role, but not the actor, which has to report it."""

    def stop(*_: object) -> None:
        raise _StoppedError

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    # Ray starts its processes with SIGINT blocked, so that Ctrl-C reaches the launcher only.
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, before)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in before.items():
            signal.signal(number, handler)


def _pass_signals(ray: Any, job: Any, role: str, life: str) -> None:
    """Delivers signals in a thread of its own, while this is the current process of the role."""
    main = threading.main_thread().ident
    try:
        while (number := ray.get(job.next_signal.remote(role, life))) is not None and main is not None:
            signal.pthread_kill(main, number)
    except ray.exceptions.RayError as error:
        _log.warning("%s: no more signals arrive from the launcher: %s", role, error)


def _tell(ray: Any, job: Any, role: str, message: Mapping[str, Any]) -> None:
    """Sends a message to the launcher, if it is reachable; on return the message is delivered."""
    with contextlib.suppress(ray.exceptions.RayError):
        ray.get(job.tell.remote(role, message), timeout=_TELL_SECONDS)


@contextlib.contextmanager
def _progress_told(tell: Callable[[Mapping[str, Any]], None]) -> Iterator[None]:
    """Forwards messages on the progress pipe of this process to `tell`."""
    ours, theirs = os.pipe()
    environment.put(PROGRESS_FD, str(theirs))
    reader = threading.Thread(target=_tell_lines, args=(ours, tell), name="ray-progress", daemon=True)
    reader.start()
    try:
        yield
    finally:
        if environment.get(PROGRESS_FD):  # if set, no `ProgressPipe` took the pipe, and it is still open
            environment.put(PROGRESS_FD, "")
            os.close(theirs)
        reader.join()


def _tell_lines(descriptor: int, tell: Callable[[Mapping[str, Any]], None]) -> None:
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            with contextlib.suppress(ValueError):
                if isinstance(message := json.loads(line), dict):
                    tell(message)


def _exit_code_of(entry: str, arguments: list[str]) -> int:
    """Calls the command; prints an exception as Python does at the end of a program."""
    module, _, name = entry.partition(":")
    try:
        return int(getattr(importlib.import_module(module), name)(arguments))
    except SystemExit as error:
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")
        return error.code if isinstance(error.code, int) else _FAILED if error.code else 0
    except Exception:  # noqa: BLE001 - Ray would report an exception of an actor; the launcher needs an exit code
        traceback.print_exc()
        return _FAILED
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
