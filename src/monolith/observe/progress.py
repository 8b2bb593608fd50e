"""Progress: a bar on a terminal and in a notebook, plain lines elsewhere."""

from __future__ import annotations

import math
import shutil
import sys
from typing import TYPE_CHECKING, Any, Self, TextIO

from monolith.clock import Clock, SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


_SECONDS_BETWEEN_DRAWINGS = 0.1
_SECONDS_BETWEEN_DRAWINGS_OF_A_NOTEBOOK = 0.5
"""Each one is a message to the browser."""
_SECONDS_BETWEEN_LINES = 10.0
_BAR_CELLS = 20
_ERASE_LINE = "\r\x1b[2K"


def is_watched(file: TextIO | None = None) -> bool:
    """Returns whether a person sees output immediately: on a terminal, or in the cell of a notebook."""
    return (sys.stderr if file is None else file).isatty() or (file is None and _is_notebook())


def _is_notebook() -> bool:
    """Returns whether this process is the kernel of a notebook; IPython in a terminal has none."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_shell is not None and getattr(get_shell(), "kernel", None) is not None


class Progress:
    """Shows progress. Belongs to one thread.

    On a terminal one line is redrawn at most ten times a second, in a notebook twice; elsewhere a line is written
    every ten seconds, and one at the end in all cases. An update in between only reads the clock.

    Args:
        total: Number of units in all; None: unknown.
        unit: Name of the units.
        file: Output; standard error by default.
        clock: Source of time; the machine's by default.

    >>> with Progress(total=2, unit="files", file=sys.stdout) as bar:
    ...     bar.update(2, loss=0.25, rows=1200)
    2/2 files (100 %), loss 0.25, rows 1,200
    """

    def __init__(
        self, total: int | None = None, unit: str = "steps", file: TextIO | None = None, *, clock: Clock | None = None
    ) -> None:
        if total is not None and total < 0:
            raise ValueError(f"progress: total must be >= 0 or None, got {total}")
        self.total = total
        self.unit = unit
        self.done = 0
        """Units so far."""
        self._file = sys.stderr if file is None else file
        self._clock = SystemClock() if clock is None else clock
        self._is_terminal = self._file.isatty()
        self._is_drawn = self._is_terminal or (file is None and _is_notebook())
        """Whether one line is redrawn."""
        self._interval = _SECONDS_BETWEEN_LINES
        if self._is_drawn:
            is_slow = not self._is_terminal
            self._interval = _SECONDS_BETWEEN_DRAWINGS_OF_A_NOTEBOOK if is_slow else _SECONDS_BETWEEN_DRAWINGS
        self._width = 0
        """Width of the current line in a notebook, which the next one has to cover."""
        self._fields: dict[str, Any] = {}
        self._next_drawing = self._clock.monotonic() + (0.0 if self._is_drawn else self._interval)
        self._is_shown = False
        self._shown_at = -1

    def update(self, n: int = 1, **fields: Any) -> None:
        """Counts `n` more units and sets the fields to show next to them.

        Args:
            n: Units that were done since the last call.
            **fields: Name -> a number, a text, or a function that returns one and is called only when it is shown.
                Names keep their place and last value until they are given again.
        """
        self.done += n
        if fields:
            self._fields.update(fields)
        now = self._clock.monotonic()
        if now >= self._next_drawing:
            self._next_drawing = now + self._interval
            self._show()

    def write(self, text: str) -> None:
        """Writes one permanent line; the bar continues below it."""
        self._file.write(f"{self._erased() if self._is_drawn and self._is_shown else ''}{text}\n")
        if self._is_drawn and self._is_shown:
            self._show()
        else:
            self._file.flush()

    def close(self) -> None:
        """Shows the last state and ends the line. Further calls do nothing."""
        if self.done != self._shown_at and (self.done or self._fields):
            self._show()
        if self._is_drawn and self._is_shown:
            self._file.write("\n")
            self._file.flush()
        self._is_shown = False
        self._shown_at = self.done

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _show(self) -> None:
        self._shown_at = self.done
        self._is_shown = True
        if self._is_drawn and not self._is_terminal:
            line = self._line(with_bar=True)
            self._file.write(f"{self._erased()}{line}")
            self._width = len(line)
        elif self._is_terminal:
            columns = shutil.get_terminal_size().columns
            # One cell stays free: a full line would wrap, and could not be erased.
            self._file.write(f"{self._erased()}{self._line(with_bar=True)[: columns - 1]}")
        else:
            self._file.write(f"{self._line(with_bar=False)}\n")
        self._file.flush()

    def _erased(self) -> str:
        """Returns the text that clears the line; not all notebooks support more than the carriage return."""
        if self._is_terminal:
            return _ERASE_LINE
        blanks, self._width = " " * self._width, 0
        return f"\r{blanks}\r"

    def _line(self, *, with_bar: bool) -> str:
        parts = [self._count(with_bar=with_bar)]
        parts += [f"{name.replace('_', ' ')} {_text_of(value)}" for name, value in self._fields.items()]
        return ", ".join(parts)

    def _count(self, *, with_bar: bool) -> str:
        if self.total is None:
            return f"{self.done:,} {self.unit}"
        ratio = min(self.done / self.total, 1.0) if self.total else 1.0
        counted = f"{self.done:,}/{self.total:,} {self.unit} ({math.floor(100 * ratio)} %)"
        if not with_bar:
            return counted
        filled = math.floor(_BAR_CELLS * ratio)
        return f"[{'#' * filled}{'.' * (_BAR_CELLS - filled)}] {counted}"


def _text_of(value: Any) -> str:
    if callable(value):
        value = value()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (math.isfinite(value) and abs(value) >= 1000):
        return f"{value:,.0f}"
    return f"{value:.4g}"


_SECONDS_BETWEEN_MESSAGES = 1.0
"""Fields such as the number of rows may need calls to other processes."""


class ProgressLines(Progress):
    """Sends progress, once a second at most, instead of drawing it. Belongs to one thread.

    >>> with ProgressLines(print, total=2) as bar:
    ...     bar.update(2, loss=0.25)
    {'done': 2, 'total': 2, 'fields': {'loss': 0.25}}
    """

    def __init__(
        self, send: Callable[[dict[str, Any]], object], total: int | None = None, *, clock: Clock | None = None
    ) -> None:
        super().__init__(total, file=sys.stderr, clock=clock)
        self._send = send
        self._is_drawn = False
        self._interval = _SECONDS_BETWEEN_MESSAGES
        self._next_drawing = self._clock.monotonic()

    def _show(self) -> None:
        self._shown_at = self.done
        fields = {name: value() if callable(value) else value for name, value in self._fields.items()}
        self._send({"done": self.done, "total": self.total, "fields": fields})
