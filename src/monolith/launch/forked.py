"""A role as a fork of its launcher, which has already imported the modules of a role: a start takes milliseconds.

Only for a launcher that is alone in its process, as a command is: a fork would inherit the locks of other threads, but
not the threads.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn, TextIO, TypeAlias

from monolith import environment
from monolith.launch._tied import GONE, tie_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["Body", "ForkedProcess"]

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
