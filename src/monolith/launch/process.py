"""A process of a job on this machine: its process group, output lines, messages and exit code."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monolith import environment
from monolith.launch.forked import ForkedProcess
from monolith.launch.progress_pipe import PROGRESS_FD

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from monolith.launch.forked import Body
    from monolith.launch.plan import LaunchPlan
    from monolith.launch.role import Role

__all__ = ["Lines", "RoleProcess", "tied"]

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
        self._printed, self._told = Lines(), Lines()
        self._listens = False
        with contextlib.ExitStack() as given, contextlib.ExitStack() as kept:
            self.output, printing = _pipe(kept, given)
            self.messages, telling = _pipe(kept, given)
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
        lines, is_open = self._read(self.messages, self._told)
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


def _pipe(kept: contextlib.ExitStack, given: contextlib.ExitStack) -> tuple[int, int]:
    """Returns the end that we read without blocking, and the end for the child."""
    ours, theirs = os.pipe()
    kept.callback(os.close, ours)
    given.callback(os.close, theirs)
    os.set_blocking(ours, False)
    return ours, theirs


def _objects(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields the messages among lines; other lines are skipped, since any program may write to a pipe."""
    for line in lines:
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict):
                yield found
