"""Display of a running race: a few lines redrawn on a terminal, a line per window elsewhere."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, TextIO

from monolith import environment
from monolith.clock import SystemClock

if TYPE_CHECKING:
    from monolith.cli._demo.race import RaceProgress, RaceWindow
    from monolith.clock import Clock

_SECONDS_BETWEEN_DRAWINGS = 0.2
_BAR_CELLS = 30
_SPARKS = "▁▂▃▄▅▆▇█"
_HIDE_CURSOR, _SHOW_CURSOR, _ERASE_BELOW = "\x1b[?25l", "\x1b[?25h", "\x1b[J"


def names_of(progress: RaceProgress) -> dict[str, str]:
    """Returns the displayed name of each model."""
    day = progress.frozen_day
    return {
        "online": "online",
        "hashed": "hashed ids, same memory",
        "frozen": "frozen (not yet)" if day is None else f"frozen on day {day:g}",
        "best": "best possible",
    }


def line_of(window: RaceWindow) -> str:
    """Returns a window in one line."""
    auc = ", ".join(f"{name} {window.auc[name]:.3f}" for name in ("online", "hashed", "frozen", "best"))
    return (
        f"day {window.day:.1f}: {window.examples:,} examples, {window.examples / window.seconds:,.0f}/s; AUC {auc};"
        f" {window.rows:,} rows in {window.memory_bytes / 1e6:.1f} MB, {window.inserted:,} new,"
        f" {window.expired:,} expired"
    )


def screen_of(progress: RaceProgress, *, width: int, is_unicode: bool = True) -> list[str]:
    """Returns the lines that a terminal of this width shows."""
    filled = int(_BAR_CELLS * progress.done)
    full, empty = ("█", "░") if is_unicode else ("#", ".")
    bar = full * filled + empty * (_BAR_CELLS - filled)
    counts = f"{progress.examples:,} examples    {progress.examples_per_second:,.0f} examples/s"
    lines = [
        f"monolith demo    day {progress.day:.1f}    {counts}",
        f"{bar} {100 * progress.done:3.0f} %   {progress.seconds:.0f} s",
        "",
        *_auc_lines(progress, is_unicode=is_unicode),
        "",
        *_table_lines(progress),
        "Ctrl-C ends it and writes the report",
    ]
    return [line[: width - 1] for line in lines]  # a full line would wrap, and could not be erased


def _auc_lines(progress: RaceProgress, *, is_unicode: bool) -> list[str]:
    windows = progress.windows
    lines = ["AUC of the last day" if windows else "AUC: measured at the end of the first day"]
    values = [value for window in windows for value in window.auc.values()]
    for name, label in names_of(progress).items():
        now = f"{windows[-1].auc[name]:.4f}" if windows else "     -"
        past = [window.auc[name] for window in windows][-30:]
        trend = sparkline(past, low=min(values), high=max(values)) if is_unicode and windows else ""
        lines.append(f"  {label:<26}{now}  {trend}")
    return lines


def _table_lines(progress: RaceProgress) -> list[str]:
    if not progress.windows:
        return ["table of the online model: growing"]
    last, expired = progress.windows[-1], sum(window.expired for window in progress.windows)
    return [
        f"table of the online model  {last.rows:,} rows in {last.memory_bytes / 1e6:.1f} MB",
        f"  last day                 +{last.inserted:,} new, -{last.expired:,} expired ({expired:,} in all)",
    ]


def sparkline(values: list[float], *, low: float, high: float) -> str:
    """Returns one block for each value, from the lowest at `low` to the highest at `high`; a blank for NaN.

    >>> sparkline([0.0, 0.5, 1.0, float("nan")], low=0.0, high=1.0)
    '▁▄█ '
    """
    span = max(high - low, 1e-9)
    top = len(_SPARKS) - 1
    return "".join(
        " " if value != value else _SPARKS[min(top, max(0, int((value - low) / span * top)))]  # noqa: PLR0124 - NaN
        for value in values
    )


class View:
    """Shows a race: redraws a terminal, writes a line per window to any other file. Call `close` at the end."""

    def __init__(self, file: TextIO, *, clock: Clock | None = None) -> None:
        self._file = file
        self._clock = SystemClock() if clock is None else clock
        self._is_terminal = file.isatty() and environment.get("TERM") != "dumb"
        self._is_unicode = (getattr(file, "encoding", None) or "").lower().replace("-", "") == "utf8"
        self._num_told = 0
        self._num_lines = 0
        self._next_drawing = 0.0

    def show(self, progress: RaceProgress) -> None:
        """Redraws if it is time, or prints new windows."""
        if not self._is_terminal:
            self._tell(progress)
        elif self._clock.monotonic() >= self._next_drawing:
            self._next_drawing = self._clock.monotonic() + _SECONDS_BETWEEN_DRAWINGS
            self._draw(progress)

    def close(self, progress: RaceProgress) -> None:
        """Shows the last state and gives the terminal back."""
        if not self._is_terminal:
            self._tell(progress)
            return
        self._draw(progress)
        self._file.write(f"{_SHOW_CURSOR}\n")
        self._file.flush()

    def _tell(self, progress: RaceProgress) -> None:
        for window in progress.windows[self._num_told :]:
            self._file.write(f"{line_of(window)}\n")
        if len(progress.windows) > self._num_told:
            self._num_told = len(progress.windows)
            self._file.flush()

    def _draw(self, progress: RaceProgress) -> None:
        size = shutil.get_terminal_size()
        lines = screen_of(progress, width=size.columns, is_unicode=self._is_unicode)[: max(1, size.lines - 1)]
        up = f"\x1b[{self._num_lines}F" if self._num_lines else _HIDE_CURSOR
        self._file.write(up + _ERASE_BELOW + "".join(f"{line}\n" for line in lines))
        self._file.flush()
        self._num_lines = len(lines)
