"""A role as a fork of its launcher, which has imported what roles import: a start costs milliseconds instead of that.

Only for a launcher that is alone in its process, as a command is: of the threads of others a fork would have the locks
and not the threads.
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
"""What a fork does with the arguments of a command; its exit code."""

_NULL, _OUTPUT, _ERRORS = 0, 1, 2
_FAILED = 1
_ARGUMENTS_BEGIN, _ARGUMENTS_END = 45, 46
"""Places in /proc/self/stat, behind the name of the process."""


class ForkedProcess:
    """A running fork, which leads a process group of its own and dies with the thread that made this.

    Args:
        body: What it does.
        arguments: Of the body. Lists of processes show the first two and the last two of them.
        output: Descriptor to which it prints.
        kept: Another descriptor that it keeps; all others are closed there.
        variables: Of its environment, beside ours.
    """

    def __init__(
        self, body: Body, arguments: Sequence[str], *, output: int, kept: int, variables: Mapping[str, str]
    ) -> None:
        self.returncode: int | None = None
        """Below 0 for a signal; None until somebody has waited for it."""
        launcher = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        with _deaf():  # a signal that comes before the fork has its own handlers waits for them
            self.pid = os.fork()
            if self.pid == 0:
                _live(body, arguments, launcher=launcher, output=output, kept=kept, variables=variables)
        with contextlib.suppress(OSError):  # the child does it, too: whoever is first
            os.setpgid(self.pid, self.pid)

    def wait(self) -> int:
        """Until it has ended; the exit code."""
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
    """All that a fork does. It never returns to what its launcher was doing, nor ends what that has begun."""
    exit_code = _FAILED
    try:
        gc.freeze()  # what the launcher has is not looked through, so that its pages stay shared
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
    """Standard ones as a program started by a launcher has them; none of the launcher's own."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, _NULL)
    os.dup2(output, _OUTPUT)
    os.dup2(output, _ERRORS)
    os.set_inheritable(kept, True)
    for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if descriptor > _ERRORS and descriptor != kept:
            with contextlib.suppress(OSError):  # that of the list itself is closed already
                os.close(descriptor)
    sys.stdin = _text_file(_NULL, "r")
    sys.stdout = _text_file(_OUTPUT, "w")
    sys.stderr = _text_file(_ERRORS, "w")


def _text_file(descriptor: int, mode: Literal["r", "w"]) -> TextIO:
    """Whole lines at once: what a role prints is read while it runs."""
    buffering = 1 if mode == "w" else -1
    return open(descriptor, mode, buffering=buffering, encoding="utf-8", errors="backslashreplace", closefd=False)


def _take_signals() -> None:
    """As a program that is started gets them: what was ignored stays so, all else is as it was in the beginning."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _result_of(body: Body, arguments: Sequence[str]) -> int:
    """The exit code, also of a body that ends as a program does."""
    try:
        return body(arguments)
    except SystemExit as end:
        if isinstance(end.code, int | None):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
    except BaseException:  # noqa: BLE001 - there is nobody above who would tell it
        traceback.print_exc()
    return _FAILED


def _show(arguments: Sequence[str]) -> None:
    """Lists of processes show these words, as far as there is room where the arguments of the launcher were."""
    fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    begin, end = (int(fields[place]) for place in (_ARGUMENTS_BEGIN, _ARGUMENTS_END))
    room = end - begin
    if begin and room > 0:
        shown = b"\0".join(word.encode("utf-8", "surrogateescape") for word in ("monolith", *arguments))[: room - 1]
        ctypes.memmove(begin, shown.ljust(room, b"\0"), room)
