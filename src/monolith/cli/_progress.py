"""How far a command is: a bar on a terminal, plain lines elsewhere. Commands that print JSON do not use it."""

from __future__ import annotations

import math
import shutil
import sys
from typing import TYPE_CHECKING, Any, Self, TextIO

from monolith.clock import SystemClock

if TYPE_CHECKING:
    from types import TracebackType

    from monolith.clock import Clock

__all__ = ["Progress"]

_SECONDS_BETWEEN_DRAWINGS = 0.1
_SECONDS_BETWEEN_LINES = 10.0
_BAR_CELLS = 20
_ERASE_LINE = "\r\x1b[2K"


class Progress:
    """Shows how far a command is. Belongs to one thread.

    On a terminal one line is drawn anew at most ten times a second; elsewhere a line is written every ten seconds, and
    one at the end in both cases. An update in between costs a look at the clock.

    Args:
        total: How many units there will be; None: unknown.
        unit: What is counted.
        file: Where to write.
        clock: What time it is; the machine's by default.

    >>> with Progress(total=2, unit="files", file=sys.stdout) as bar:
    ...     bar.update(2, loss=0.25, rows=1200)
    2/2 files (100 %), loss 0.25, rows 1,200
    """

    def __init__(
        self,
        total: int | None = None,
        unit: str = "steps",
        file: TextIO | None = None,
        *,
        clock: Clock | None = None,
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
        self._interval = _SECONDS_BETWEEN_DRAWINGS if self._is_terminal else _SECONDS_BETWEEN_LINES
        self._fields: dict[str, Any] = {}
        self._next_drawing = self._clock.monotonic() + (0.0 if self._is_terminal else self._interval)
        self._is_shown = False
        self._shown_at = -1

    def update(self, n: int = 1, **fields: Any) -> None:
        """Counts `n` more units and remembers what to show beside them.

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
        """Writes one line for good; the bar goes on below it."""
        self._file.write(f"{_ERASE_LINE if self._is_terminal and self._is_shown else ''}{text}\n")
        if self._is_terminal and self._is_shown:
            self._show()
        else:
            self._file.flush()

    def close(self) -> None:
        """Shows the last state and ends the line. Further calls do nothing."""
        if self.done != self._shown_at and (self.done or self._fields):
            self._show()
        if self._is_terminal and self._is_shown:
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
        if self._is_terminal:
            columns = shutil.get_terminal_size().columns
            # One cell stays free: a full line would wrap, and could not be erased.
            self._file.write(f"{_ERASE_LINE}{self._line(with_bar=True)[: columns - 1]}")
        else:
            self._file.write(f"{self._line(with_bar=False)}\n")
        self._file.flush()

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
