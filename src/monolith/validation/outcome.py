"""Results of a progressive validation: metrics of predictions, by windows of event time and in total, and a page.

The page compares outcomes: plots over time, and tables of their values. It loads no resources.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from monolith.files import replaced_file
from monolith.metrics import BinnedAUC, Calibration, ExactAUC, LogLoss
from monolith.observe import STYLE, Axes, Series, line_chart

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from torch import Tensor

    from monolith.validation.serving_copy import SyncRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Metrics of predictions; NaN where undefined, such as an AUC without a click."""

    examples: int
    auc: float
    log_loss: float
    calibration: float
    """Predicted clicks per click: 1 is ideal, 1.1 predicts 10 % too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(Scores):
    """The scores of a window of event time."""

    begin: int
    """Start of the window, Unix seconds."""
    end: int


class _Piece(NamedTuple):
    predictions: Tensor
    labels: Tensor


class WindowedScores:
    """Accumulator of predictions in approximate order of time; a window is closed once no example can fall into it.

    Only predictions of open windows are kept, so that memory does not grow with the stream.

    An example may be `disorder_seconds` older than the newest time; later ones count in the oldest open window.
    """

    def __init__(self, *, begin: int, seconds: int, disorder_seconds: float) -> None:
        self._begin = begin
        self._seconds = seconds
        self._disorder_seconds = disorder_seconds
        self._open: dict[int, list[_Piece]] = {}
        self._next = 0
        """Windows before this one are closed."""
        self._newest = begin
        self.windows: list[Window] = []
        """Closed windows that are not empty."""
        self._examples = 0
        # Binned, because an exact AUC would keep a number for every example of the stream.
        self._auc, self._log_loss, self._calibration = BinnedAUC(), LogLoss(), Calibration()

    def add(self, times: Tensor, predictions: Tensor, labels: Tensor) -> None:
        """Adds examples: Unix seconds, probabilities and labels (0 or 1), each [B]."""
        numbers = ((times - self._begin) // self._seconds).clamp_min(self._next)
        first, last = int(numbers.min()), int(numbers.max())
        for number in range(first, last + 1):
            chosen = numbers == number
            if first == last or bool(chosen.any()):
                self._open.setdefault(number, []).append(_Piece(predictions[chosen], labels[chosen]))
        self._newest = max(self._newest, int(times.max()))
        self._close_before(int((self._newest - self._disorder_seconds - self._begin) // self._seconds))

    def close(self) -> Scores:
        """Closes all windows; returns the scores of everything."""
        self._close_before(max(self._open, default=-1) + 1)
        return Scores(
            examples=self._examples,
            auc=self._auc.compute(),
            log_loss=self._log_loss.compute(),
            calibration=self._calibration.compute(),
        )

    def _close_before(self, end: int) -> None:
        for number in sorted(number for number in self._open if number < end):
            pieces = self._open.pop(number)
            predictions, labels = (torch.cat(parts) for parts in zip(*pieces, strict=True))
            begin = self._begin + number * self._seconds
            self.windows.append(self._window(predictions, labels, begin))
        self._next = max(self._next, end)

    def _window(self, predictions: Tensor, labels: Tensor, begin: int) -> Window:
        auc, log_loss, calibration = ExactAUC(), LogLoss(), Calibration()
        for metric in (auc, log_loss, calibration, self._auc):
            metric.update(predictions, labels)
        self._log_loss.merge(log_loss)
        self._calibration.merge(calibration)
        self._examples += len(labels)
        return Window(
            begin=begin,
            end=begin + self._seconds,
            examples=len(labels),
            auc=auc.compute(),
            log_loss=log_loss.compute(),
            calibration=calibration.compute(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOutcome:
    """Metrics of one serving copy."""

    rule: SyncRule
    windows: tuple[Window, ...]
    """In the order of time; windows without an example are omitted."""
    total: Scores
    """Metrics over all measured examples. Its AUC is over all pairs, including those of different windows, in 65,536
    bins."""
    num_takes: int
    """Number of times rows were loaded."""
    bytes_taken: int
    """Size of the loaded rows and tombstones, as encoded in a log."""

    @property
    def mean_auc(self) -> float:
        """Mean of the windows' AUCs, each with the same weight; windows without one are ignored."""
        known = [window.auc for window in self.windows if math.isfinite(window.auc)]
        return sum(known) / len(known) if known else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values; undefined ones are None."""
        return {
            "rule": _plain(self.rule.to_dict()),
            "mean_auc": _number(self.mean_auc),
            "total": _plain(asdict(self.total)),
            "num_takes": self.num_takes,
            "bytes_taken": self.bytes_taken,
            "windows": [_plain(asdict(window)) for window in self.windows],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationOutcome(Mapping[str, CopyOutcome]):
    """Results of one trained model: its serving copies by name. `str` returns a table of them."""

    copies: dict[str, CopyOutcome]
    examples: int
    """Number of trained examples."""
    rows: int
    """Rows of the trained tables: the maximum over the ends of the windows."""
    memory_bytes: int
    """Memory of the trained tables, likewise: rows, indexes and filters."""
    evicted: int
    """Number of expired rows that were removed."""

    def __getitem__(self, name: str) -> CopyOutcome:
        return self.copies[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.copies)

    def __len__(self) -> int:
        return len(self.copies)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, serializable as JSON."""
        return {
            "examples": self.examples,
            "rows": self.rows,
            "memory_bytes": self.memory_bytes,
            "evicted": self.evicted,
            "copies": {name: copy.to_dict() for name, copy in self.copies.items()},
        }

    def __str__(self) -> str:
        return table_of(self.copies)


def table_of(copies: Mapping[str, CopyOutcome]) -> str:
    """Returns a table with a line for each copy."""
    width = max(map(len, copies), default=0)
    lines = [f"{'':<{width}}  mean AUC  total AUC  log loss  calibration  take-overs        MB"]
    lines += [
        f"{name:<{width}}  {copy.mean_auc:8.4f}  {copy.total.auc:9.4f}  {copy.total.log_loss:8.4f}"
        f"  {copy.total.calibration:11.3f}  {copy.num_takes:10,}  {copy.bytes_taken / 1e6:8.1f}"
        for name, copy in copies.items()
    ]
    return "\n".join(lines)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _number(value) if isinstance(value, float) else value for name, value in values.items()}


def _number(value: float) -> float | str | None:
    if math.isinf(value):
        return "infinite"
    return None if math.isnan(value) else value


_DAY = 86_400
_LIGHT = ("#1f5fd6", "#b45309", "#c2255c", "#0f766e", "#6d28d9", "#4d7c0f", "#6b7280", "#9a3412")
_DARK = ("#7cb0ff", "#f5b04a", "#ff7fae", "#5eead4", "#c4b5fd", "#bef264", "#a8b0bd", "#fdba74")
_PAGE_STYLE = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 860px; margin: 0 auto; padding: 24px 16px 48px; }
section { background: var(--card); border: 1px solid var(--grid); border-radius: 10px; padding: 18px; margin: 16px 0; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.1rem; margin: 0 0 .5rem; }
svg { display: block; width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th:first-child { text-align: left; }
"""


def write_page(path: str | os.PathLike[str], outcomes: Mapping[str, CopyOutcome], *, title: str) -> None:
    """Writes a page that compares outcomes of one or several runs. The file is replaced atomically.

    Args:
        path: A local file.
        outcomes: Name -> outcome; an `Outcome` is such a mapping.
        title: Title of the page.

    Raises:
        OpError: the file cannot be written.
    """
    with replaced_file(path) as temporary:
        temporary.write_text(page_of(outcomes, title=title), encoding="utf-8")


def page_of(outcomes: Mapping[str, CopyOutcome], *, title: str) -> str:
    """Returns the page as text."""
    colours = "".join(f"--series-{number}: {colour}; " for number, colour in enumerate(_LIGHT))
    dark = "".join(f"--series-{number}: {colour}; " for number, colour in enumerate(_DARK))
    light_page = "--page: #fbfbfa; --card: #fff; --text: #1d2430; --faint: #5d6675; --grid: #e6e8ec;"
    dark_page = "--page: #12151b; --card: #1a1f28; --text: #e7eaf0; --faint: #9aa4b5; --grid: #2c3340;"
    style = (
        f":root {{ {light_page} {colours}}}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark_page} {dark}}} }}\n{_PAGE_STYLE}{STYLE}"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n<title>{escape(title)}</title>\n'
        f"<style>{style}</style>\n</head>\n<body>\n<main>\n<h1>{escape(title)}</h1>\n"
        f"<section>{_total_table(outcomes)}</section>\n{_sections(outcomes)}"
        f"<section><h2>Windows</h2>{_window_table(outcomes)}</section>\n</main>\n</body>\n</html>\n"
    )


def _sections(outcomes: Mapping[str, CopyOutcome]) -> str:
    plots: list[tuple[str, Callable[[Window], float], Callable[[CopyOutcome], float]]] = [
        ("AUC", lambda window: window.auc, lambda outcome: outcome.mean_auc),
        ("log loss", lambda window: window.log_loss, lambda outcome: outcome.total.log_loss),
        ("calibration", lambda window: window.calibration, lambda outcome: outcome.total.calibration),
    ]
    first = min((window.begin for outcome in outcomes.values() for window in outcome.windows), default=0)
    sections = []
    for name, figure_of, told_of in plots:
        series = [
            Series(
                str(number % len(_LIGHT)),
                label,
                [((window.end - first) / _DAY, figure_of(window)) for window in outcome.windows],
                is_dashed=number >= len(_LIGHT),
                told=told_of(outcome),
            )
            for number, (label, outcome) in enumerate(outcomes.items())
        ]
        axes = Axes(
            title=f"{name} over time",
            x_label="days of event time since measuring began",
            y_label=name,
            y_text=lambda value: f"{value:.4f}",
        )
        sections.append(f"<section><h2>{escape(axes.title)}</h2>{line_chart(series, axes)}</section>\n")
    return "".join(sections)


def _total_table(outcomes: Mapping[str, CopyOutcome]) -> str:
    columns = ("", "mean AUC", "total AUC", "log loss", "calibration", "examples", "take-overs", "MB loaded")
    rows = [
        f"<tr><th>{escape(name)}</th><td>{_text(outcome.mean_auc)}</td><td>{_text(outcome.total.auc)}</td>"
        f"<td>{_text(outcome.total.log_loss)}</td><td>{_text(outcome.total.calibration)}</td><td>{outcome.total.examples:,}</td>"
        f"<td>{outcome.num_takes:,}</td><td>{outcome.bytes_taken / 1e6:,.1f}</td></tr>"
        for name, outcome in outcomes.items()
    ]
    return _table(columns, rows)


def _window_table(outcomes: Mapping[str, CopyOutcome]) -> str:
    columns = ("", "begin", "examples", "AUC", "log loss", "calibration")
    rows = [
        f"<tr><th>{escape(name)}</th><td>{window.begin}</td><td>{window.examples:,}</td><td>{_text(window.auc)}</td>"
        f"<td>{_text(window.log_loss)}</td><td>{_text(window.calibration)}</td></tr>"
        for name, outcome in outcomes.items()
        for window in outcome.windows
    ]
    return _table(columns, rows)


def _table(columns: tuple[str, ...], rows: list[str]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _text(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "-"
