"""A process of a job on this machine, a program or a fork: its group, output lines, messages and exit code.

A fork has already imported the modules of a role, so that a start takes milliseconds. Only for a launcher that is alone
in its process, as a command is: a fork would inherit the locks of other threads, but not the threads.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TextIO, TypeAlias

from monolith import environment
from monolith.launch._tied import GONE, tie_to
from monolith.launch.progress_pipe import PROGRESS_FD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from monolith.launch.plan import LaunchPlan
    from monolith.launch.role import Role

Body: TypeAlias = "Callable[[Sequence[str]], int]"
"""Function that a fork runs with the arguments of a command; returns the exit code."""

_NULL, _OUTPUT, _ERRORS = 0, 1, 2
_FAILED = 1
_ARGUMENTS_BEGIN, _ARGUMENTS_END = 45, 46
"""Field indices in /proc/self/stat, counted after the name of the process."""


class ForkedProcess:
    """A running fork. It leads a process group of its own, and dies with the thread that created this object.

    Args:
        body: Function to run.
        arguments: Arguments of the body. Process listings show the first two and the last two of them.
        output: Descriptor for standard output and standard error.
        kept: Another descriptor that the fork keeps; all others are closed there.
        variables: Environment variables in addition to those of this process.
    """

    def __init__(
        self, body: Body, arguments: Sequence[str], *, output: int, kept: int, variables: Mapping[str, str]
    ) -> None:
        self.returncode: int | None = None
        """Exit code, below 0 for a signal; None until `wait`."""
        launcher = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        with _deaf():  # a signal stays pending until the fork has its own handlers
            self.pid = os.fork()
            if self.pid == 0:
                _live(body, arguments, launcher=launcher, output=output, kept=kept, variables=variables)
        with contextlib.suppress(OSError):  # the child does it too; either may be first
            os.setpgid(self.pid, self.pid)

    def wait(self) -> int:
        """Waits for the end and returns the exit code."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _live(
    body: Body, arguments: Sequence[str], *, launcher: int, output: int, kept: int, variables: Mapping[str, str]
) -> NoReturn:
    """Runs a fork. It never returns into the launcher's code, nor runs the launcher's cleanup."""
    exit_code = _FAILED
    try:
        gc.freeze()  # objects of the launcher are not scanned, so that their pages stay shared
        os.setpgid(0, 0)
        if not tie_to(launcher):
            os._exit(GONE)
        _take_descriptors(output, kept)
        _show([*arguments[:2], *arguments[2:][-2:]])
        for name, value in variables.items():
            environment.put(name, value)
        sys.argv[:] = ["monolith", *arguments]
        _take_signals()
        exit_code = _result_of(body, arguments)
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - as an interpreter ends: threads first,
        atexit._run_exitfuncs()  # noqa: SLF001 - then what was to be done at the end
    finally:
        for file in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                file.flush()
        os._exit(exit_code)


def _take_descriptors(output: int, kept: int) -> None:
    """Sets up the standard descriptors as in a started program, and closes those of the launcher."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, _NULL)
    os.dup2(output, _OUTPUT)
    os.dup2(output, _ERRORS)
    os.set_inheritable(kept, True)
    for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if descriptor > _ERRORS and descriptor != kept:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself is already closed
                os.close(descriptor)
    sys.stdin = _text_file(_NULL, "r")
    sys.stdout = _text_file(_OUTPUT, "w")
    sys.stderr = _text_file(_ERRORS, "w")


def _text_file(descriptor: int, mode: Literal["r", "w"]) -> TextIO:
    """Opens a line-buffered text file: the output of a role is read while it runs."""
    buffering = 1 if mode == "w" else -1
    return open(descriptor, mode, buffering=buffering, encoding="utf-8", errors="backslashreplace", closefd=False)


def _take_signals() -> None:
    """Sets up signals as in a started program: ignored signals stay ignored, all others get their default."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _result_of(body: Body, arguments: Sequence[str]) -> int:
    """Returns the exit code, also of a body that raises SystemExit."""
    try:
        return body(arguments)
    except SystemExit as end:
        if isinstance(end.code, int | None):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
    except BaseException:  # noqa: BLE001 - no caller above could report it
        traceback.print_exc()
    return _FAILED


def _show(arguments: Sequence[str]) -> None:
    """Sets the arguments that process listings show, as far as they fit in the launcher's argument memory."""
    fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    begin, end = (int(fields[place]) for place in (_ARGUMENTS_BEGIN, _ARGUMENTS_END))
    room = end - begin
    if begin and room > 0:
        shown = b"\0".join(word.encode("utf-8", "surrogateescape") for word in ("monolith", *arguments))[: room - 1]
        ctypes.memmove(begin, shown.ljust(room, b"\0"), room)


_TIED = Path(__file__).with_name("_tied.py")
_CHUNK_BYTES = 1 << 16
_LONGEST_LINE_BYTES = 1 << 16


def tied(command: Sequence[str]) -> list[str]:
    """Returns a command that dies with the thread that starts it, however that thread ends."""
    return [sys.executable, "-I", "-S", str(_TIED), str(os.getpid()), *command]


class Lines:
    """Splits the bytes of a pipe into lines. Invalid UTF-8 is replaced, and an overlong line is split."""

    def __init__(self) -> None:
        self._rest = b""

    def add(self, chunk: bytes) -> list[str]:
        """Returns the lines that are complete now."""
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        while len(self._rest) > _LONGEST_LINE_BYTES:
            whole.append(self._rest[:_LONGEST_LINE_BYTES])
            self._rest = self._rest[_LONGEST_LINE_BYTES:]
        return [_text(line) for line in whole]

    def end(self) -> list[str]:
        """Returns the text after the last line break."""
        rest, self._rest = self._rest, b""
        return [_text(rest)] if rest else []


def _text(line: bytes) -> str:
    # Of a line that was redrawn with carriage returns, only the last version counts.
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")


class RoleProcess:
    """A running role. It leads a process group of its own, and dies with the thread that created this object.

    Args:
        role: The role.
        plan: Gives its command, and its variables in addition to those of this process.
        body: Function that the role runs as a fork of this process; None: the role runs the command of the plan.

    The descriptors `output` (printed text) and `messages` (its progress pipe) are for a selector.
    """

    def __init__(self, role: Role, plan: LaunchPlan, body: Body | None = None) -> None:
        self.role = role
        self._printed, self._message_lines = Lines(), Lines()
        self._listens = False
        with contextlib.ExitStack() as child_ends, contextlib.ExitStack() as kept:
            self.output, printing = _pipe(kept, child_ends)
            self.messages, telling = _pipe(kept, child_ends)
            variables = {**plan.environment, PROGRESS_FD: str(telling)}
            self._process: ForkedProcess | subprocess.Popen[bytes]
            if body is not None:
                arguments = plan.arguments(role)
                self._process = ForkedProcess(body, arguments, output=printing, kept=telling, variables=variables)
            else:
                self._process = _started(plan.command(role), output=printing, kept=telling, variables=variables)
            self._pipes = kept.pop_all()

    @property
    def pid(self) -> int:
        """Process id, also the id of its group."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it has ended; its process id stays reserved until `close`."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return self._process.returncode is not None or os.waitid(os.P_PID, self.pid, options) is not None

    def read_lines(self) -> tuple[list[str], bool]:
        """Returns the lines printed since the last call, and whether more may come."""
        return self._read(self.output, self._printed)

    def read_messages(self) -> tuple[list[dict[str, Any]], bool]:
        """Returns the messages since the last call, and whether more may come."""
        lines, is_open = self._read(self.messages, self._message_lines)
        messages = list(_objects(lines))
        self._listens = self._listens or bool(messages)
        return messages, is_open

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the role; SIGKILL also goes to all processes that it started.

        A role that has not sent a message yet has no signal handlers: SIGINT would end it with a traceback, so it gets
        SIGTERM instead, which ends it immediately.
        """
        if number is signal.SIGINT and not self._listens:
            number = signal.SIGTERM
        with contextlib.suppress(ProcessLookupError):
            if number is signal.SIGKILL:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)

    def close(self) -> int:
        """Kills the role and all processes that it started, if needed; returns the exit code, below 0 for a signal."""
        if self._process.returncode is None:
            # The process was not reaped yet, so its id cannot have been reused.
            self.send(signal.SIGKILL)
            self._process.wait()
            self._pipes.close()
        return self._process.wait()

    @staticmethod
    def _read(descriptor: int, lines: Lines) -> tuple[list[str], bool]:
        try:
            chunk = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return [], True
        return (lines.add(chunk), True) if chunk else (lines.end(), False)


def _started(
    command: Sequence[str], *, output: int, kept: int, variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Starts a program that leads a process group of its own and dies with the thread that starts it."""
    return subprocess.Popen(  # noqa: S603 - the commands of a plan
        tied(command),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**environment.starting_with(""), **variables},
        pass_fds=(kept,),
        process_group=0,  # so that Ctrl-C reaches the launcher only, and a role ends with all processes that it started
    )


def _pipe(kept: contextlib.ExitStack, child_ends: contextlib.ExitStack) -> tuple[int, int]:
    """Returns the end that we read without blocking, and the end for the child."""
    ours, theirs = os.pipe()
    kept.callback(os.close, ours)
    child_ends.callback(os.close, theirs)
    os.set_blocking(ours, False)
    return ours, theirs


def _objects(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields the messages among lines; other lines are skipped, since any program may write to a pipe."""
    for line in lines:
        with contextlib.suppress(ValueError):
            message = json.loads(line)
            if isinstance(message, dict):
                yield message
