"""Line charts as SVG texts: readable on light and dark pages, with nothing to load.

Colours come from the page as CSS variables (``--series-online``, ...); `STYLE` sets everything else of the drawing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_WIDTH, _HEIGHT = 760, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 188, 16, 48
_LABEL_HEIGHT = 16

STYLE = """
svg text { font: 13px system-ui, sans-serif; fill: var(--text); }
svg .tick { fill: var(--faint); }
svg .grid { stroke: var(--grid); }
svg .axis { stroke: var(--faint); }
svg .line { fill: none; stroke-width: 2.25; stroke-linejoin: round; stroke-linecap: round; }
svg .dashed { stroke-dasharray: 3 5; }
svg .mark { stroke: var(--faint); stroke-dasharray: 4 4; }
svg .end { font-weight: 600; }
"""


@dataclass(frozen=True, slots=True)
class Series:
    """A line and its name; `key` selects its colour."""

    key: str
    label: str
    points: Sequence[tuple[float, float]]
    is_dashed: bool = False

    @property
    def finite(self) -> list[tuple[float, float]]:
        """The points that can be drawn."""
        return [(x, y) for x, y in self.points if math.isfinite(x) and math.isfinite(y)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """What the axes mean."""

    title: str
    x_label: str
    y_label: str
    y_text: Callable[[float], str]
    from_zero: bool = False
    mark: tuple[float, str] | None = None
    """A vertical line at some x, and what happened there."""


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    first: float
    last: float

    def __call__(self, value: float) -> float:
        return self.first + (value - self.low) / (self.high - self.low) * (self.last - self.first)


def ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Round numbers that cover a range, about `count` of them.

    >>> ticks(0.52, 0.81)
    [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85]
    >>> ticks(0, 30)
    [0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0]
    """
    span = max(high - low, 1e-9 * max(1.0, abs(high)))
    power = 10.0 ** math.floor(math.log10(span / count))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power * count >= span * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, max(last, first + 1) + 1)]


def line_chart(series: Sequence[Series], axes: Axes) -> str:
    """The chart as one SVG element; a note instead of lines where no series has a point."""
    points = [point for each in series for point in each.finite]
    head = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(axes.title)}">'
        f"<title>{escape(axes.title)}</title>"
    )
    if not points:
        return f'{head}<text x="{_LEFT}" y="{_HEIGHT / 2}">The run was too short to measure this.</text></svg>'
    xs, ys = [x for x, _ in points], [y for _, y in points]
    x_ticks = ticks(0.0, max(xs), 8)
    y_ticks = ticks(0.0 if axes.from_zero else min(ys), max(ys))
    # Time ends where the data ends, not at the next round number.
    x = _Scale(0.0, max(xs), _LEFT, _WIDTH - _RIGHT)
    y = _Scale(y_ticks[0], y_ticks[-1], _HEIGHT - _BOTTOM, _TOP)
    parts = [head, *_frame(x, y, [tick for tick in x_ticks if tick <= max(xs) * 1.001], y_ticks), *_names(axes)]
    if axes.mark is not None and x.low <= axes.mark[0] <= x.high:
        parts += _mark(x(axes.mark[0]), axes.mark[1], axes)
    parts += [_line(each, x, y) for each in reversed(series) if each.finite]  # the first one lies on top
    parts += _end_labels([each for each in series if each.finite], y, axes)
    return "".join([*parts, "</svg>"])


def _frame(x: _Scale, y: _Scale, x_ticks: list[float], y_ticks: list[float]) -> list[str]:
    parts = []
    decimals = max(0, -math.floor(math.log10(y_ticks[1] - y_ticks[0]) + 1e-9))
    for tick in y_ticks:
        place = f"{y(tick):.1f}"
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{place}" y2="{place}"/>')
        text = f"{tick:,.{decimals}f}"
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{text}</text>')
    bottom = _HEIGHT - _BOTTOM
    for tick in x_ticks:
        at = f"{x(tick):.1f}"
        parts.append(f'<line class="axis" x1="{at}" x2="{at}" y1="{bottom}" y2="{bottom + 5}"/>')
        parts.append(f'<text class="tick" x="{at}" y="{bottom + 20}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}"/>')
    return parts


def _names(axes: Axes) -> list[str]:
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    height = (_TOP + _HEIGHT - _BOTTOM) / 2
    return [
        f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(axes.x_label)}</text>',
        f'<text transform="translate(14 {height}) rotate(-90)" text-anchor="middle">{escape(axes.y_label)}</text>',
    ]


def _mark(at: float, text: str, axes: Axes) -> list[str]:
    bottom = _HEIGHT - _BOTTOM
    low = bottom - 8 if not axes.from_zero else _TOP + 12
    return [
        f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{bottom}"/>',
        f'<text class="tick" x="{at + 6:.1f}" y="{low}">{escape(text)}</text>',
    ]


def _line(series: Series, x: _Scale, y: _Scale) -> str:
    points = " ".join(f"{x(each_x):.1f},{y(each_y):.1f}" for each_x, each_y in series.finite)
    kind = "line dashed" if series.is_dashed else "line"
    colour = f"var(--series-{series.key})"
    if len(series.finite) == 1:
        at_x, at_y = points.split(",")
        return f'<circle cx="{at_x}" cy="{at_y}" r="3.5" style="fill:{colour}"/>'
    return f'<polyline class="{kind}" style="stroke:{colour}" points="{points}"/>'


def _end_labels(series: Sequence[Series], y: _Scale, axes: Axes) -> list[str]:
    """Names and last values beside the ends of the lines, moved apart where they would overlap."""
    ordered = sorted(series, key=lambda each: y(each.finite[-1][1]))
    places: list[float] = []
    for each in ordered:
        place = y(each.finite[-1][1]) + 4
        places.append(max(place, places[-1] + _LABEL_HEIGHT) if places else max(place, _TOP + 4))
    overflow = max(0.0, places[-1] - (_HEIGHT - _BOTTOM + 4))
    left = _WIDTH - _RIGHT + 10
    return [
        f'<text class="end" x="{left}" y="{place - overflow:.1f}" style="fill:var(--series-{each.key})">'
        f"{escape(each.label)} {escape(axes.y_text(each.finite[-1][1]))}</text>"
        for each, place in zip(ordered, places, strict=True)
    ]
