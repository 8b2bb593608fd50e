"""Stack dumps of a running process: ``kill -USR1 <pid>`` prints the stack of every thread.

Importing this module installs the handler (`add_siguser1_handler`); ``import monolith`` does not. The handler runs in
the main thread, between two bytecodes: a process stuck inside a native call answers when that call returns.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import traceback
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_printing = threading.Lock()


def print_stack_trace(sig: int, frame: FrameType | None) -> None:
    """Prints the stack at `frame`, then those of all other threads, to standard error.

    Args:
        sig: Number of the signal received.
        frame: Where the main thread was interrupted.
    """
    here = threading.get_ident()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = [f"signal {sig}: stacks of process {os.getpid()}\n"]
    lines += _stack(names.get(here, "main"), here, frame)
    for ident, innermost in sys._current_frames().items():  # noqa: SLF001 - the one way to see other threads
        if ident != here:
            lines += _stack(names.get(ident, "not started by Python"), ident, innermost)
    _write_to_stderr("".join(lines))


def add_siguser1_handler() -> None:
    """Prints all stacks on SIGUSR1, after calling the handler that is installed now.

    A second call in a row changes nothing. Off the main thread, where Python accepts no handlers, and on systems
    without the signal it warns and changes nothing.
    """
    number = getattr(signal, "SIGUSR1", None)
    if number is None:
        warnings.warn(
            "SIGUSR1 does not exist on this system: stacks cannot be dumped on request", RuntimeWarning, stacklevel=2
        )
        return
    if threading.current_thread() is not threading.main_thread():
        message = (
            "SIGUSR1 handler not installed: Python takes handlers from the main thread only, and this is thread "
            f"{threading.current_thread().name!r}; call add_siguser1_handler() from the main one"
        )
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return
    earlier = signal.getsignal(number)
    if isinstance(earlier, _PrintAfter):
        return
    if earlier is None:
        message = "SIGUSR1 had a handler that was not set from Python; it cannot be called any more and is replaced"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    signal.signal(number, _PrintAfter(earlier))


class _PrintAfter:
    """A handler that calls the earlier one, then prints the stacks, also when the earlier one raised.

    A signal that comes while stacks are being printed does not print them again.
    """

    def __init__(self, earlier: object) -> None:
        self._earlier = earlier

    def __call__(self, sig: int, frame: FrameType | None) -> None:
        try:
            if callable(self._earlier):
                self._earlier(sig, frame)
        finally:
            # A reader that is slower than the signals would make handlers pile up on each other.
            if _printing.acquire(blocking=False):
                try:
                    print_stack_trace(sig, frame)
                finally:
                    _printing.release()


def _stack(name: str, ident: int, frame: FrameType | None) -> list[str]:
    return [f"thread {name} ({ident}):\n", *(traceback.format_stack(frame) if frame else ["  no Python frame\n"])]


def _write_to_stderr(text: str) -> None:
    """Writes past the buffer of standard error: the interrupted code may be inside it, and it is not reentrant."""
    stream = sys.stderr
    if stream is None:
        return
    try:
        descriptor = stream.fileno()
    except (AttributeError, io.UnsupportedOperation):  # replaced by an object of the program's own
        stream.write(text)
        return
    rest = text.encode("utf-8", "backslashreplace")
    while rest:
        rest = rest[os.write(descriptor, rest) :]


add_siguser1_handler()
