"""Line charts as SVG texts: readable on light and dark pages, on desks and on phones, with nothing to load.

Every chart is drawn twice, for wide and for narrow pages, and the page shows the one that fits: a drawing that was
only scaled down would have unreadable letters. Colours come from the page as CSS variables
(``--series-online``, ...); `STYLE` sets everything else of the drawing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LABEL_HEIGHT = 16
NARROW_BELOW = 640
"""Width of a page, in pixels, below which it shows the narrow drawings."""

STYLE = f"""
.narrow {{ display: none; }}
@media (max-width: {NARROW_BELOW}px) {{ .wide {{ display: none; }} .narrow {{ display: block; }} }}
svg text {{ font: 13px system-ui, sans-serif; fill: var(--text); }}
svg .tick {{ fill: var(--faint); }}
svg .grid {{ stroke: var(--grid); }}
svg .axis {{ stroke: var(--faint); }}
svg .line {{ fill: none; stroke-width: 2.25; stroke-linejoin: round; stroke-linecap: round; }}
svg .dashed {{ stroke-dasharray: 3 5; }}
svg .mark {{ stroke: var(--faint); stroke-dasharray: 4 4; }}
svg .end {{ font-weight: 600; }}
svg .span {{ fill: var(--grid); opacity: .45; }}
"""


@dataclass(frozen=True, slots=True)
class Series:
    """A line and its name; `key` selects its colour."""

    key: str
    label: str
    points: Sequence[tuple[float, float]]
    is_dashed: bool = False
    told: float | None = None
    """The value next to its name; None: that of its last point."""

    @property
    def last(self) -> float:
        """The value next to its name."""
        return self.finite[-1][1] if self.told is None else self.told

    @property
    def finite(self) -> list[tuple[float, float]]:
        """The points that can be drawn."""
        return [(x, y) for x, y in self.points if math.isfinite(x) and math.isfinite(y)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """Labels and annotations of the axes."""

    title: str
    x_label: str
    y_label: str
    y_text: Callable[[float], str]
    from_zero: bool = False
    mark: tuple[float, str] | None = None
    """A vertical line at some x, and its label."""
    span_from: float | None = None
    """The time from this x on is shaded."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Positions in a drawing."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    names_above: bool
    """Whether the names of the lines stand above the drawing, and not at the ends of the lines."""
    num_x_ticks: int

    @property
    def end(self) -> int:
        """End of the lines, from the left."""
        return self.width - self.right

    @property
    def floor(self) -> int:
        """Position of the x axis, from above."""
        return self.height - self.bottom


_WIDE = _Layout(760, 320, left=80, right=188, top=16, bottom=48, names_above=False, num_x_ticks=8)
_NARROW = _Layout(340, 300, left=58, right=12, top=28, bottom=48, names_above=True, num_x_ticks=5)
_SECOND_COLUMN = 145
"""Left edge of the second column of names above a narrow drawing."""


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    first: float
    last: float

    def __call__(self, value: float) -> float:
        return self.first + (value - self.low) / (self.high - self.low) * (self.last - self.first)


def ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Returns round numbers that cover a range, about `count` of them.

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
    """Returns the chart as two SVG elements, for wide and for narrow pages; the page shows one of them."""
    room = (len(series) + 1) // 2 * (_LABEL_HEIGHT + 2)  # for the names above
    narrow = replace(_NARROW, height=_NARROW.height + room, top=_NARROW.top + room)
    drawings = {"wide": _draw(series, axes, _WIDE), "narrow": _draw(series, axes, narrow)}
    return "".join(f'<div class="{name}">{drawing}</div>' for name, drawing in drawings.items())


def _draw(series: Sequence[Series], axes: Axes, layout: _Layout) -> str:
    """Returns one drawing; a note instead of lines where no series has a point."""
    points = [point for line in series for point in line.finite]
    head = (
        f'<svg viewBox="0 0 {layout.width} {layout.height}" role="img" aria-label="{escape(axes.title)}">'
        f"<title>{escape(axes.title)}</title>"
    )
    if not points:
        return (
            f'{head}<text x="{layout.left}" y="{layout.height / 2}">The run was too short to measure this.</text></svg>'
        )
    xs, ys = [x for x, _ in points], [y for _, y in points]
    y_ticks = ticks(0.0 if axes.from_zero else min(ys), max(ys))
    # Time ends where the data ends, not at the next round number.
    x = _Scale(0.0, max(xs), layout.left, layout.end)
    y = _Scale(y_ticks[0], y_ticks[-1], layout.floor, layout.top)
    x_ticks = [tick for tick in ticks(0.0, max(xs), layout.num_x_ticks) if tick <= max(xs) * 1.001]
    parts = [head]
    if axes.span_from is not None and axes.span_from < x.high:
        parts.append(_span(x(max(axes.span_from, x.low)), layout))
    parts += [*_frame(x, y, x_ticks, y_ticks, layout), *_axis_names(axes, layout)]
    if axes.mark is not None and x.low <= axes.mark[0] <= x.high:
        parts += _mark(x(axes.mark[0]), axes.mark[1], axes, layout)
    drawn = [line for line in series if line.finite]
    parts += [_line(line, x, y) for line in reversed(drawn)]  # the first one lies on top
    parts += _names_above(drawn, axes) if layout.names_above else _names_at_ends(drawn, y, axes, layout)
    return "".join([*parts, "</svg>"])


def _span(first: float, layout: _Layout) -> str:
    width, height = layout.end - first, layout.floor - layout.top
    return f'<rect class="span" x="{first:.1f}" y="{layout.top}" width="{width:.1f}" height="{height}"/>'


def _frame(x: _Scale, y: _Scale, x_ticks: list[float], y_ticks: list[float], layout: _Layout) -> list[str]:
    parts = []
    decimals = max(0, -math.floor(math.log10(y_ticks[1] - y_ticks[0]) + 1e-9))
    for tick in y_ticks:
        place = f"{y(tick):.1f}"
        parts.append(f'<line class="grid" x1="{layout.left}" x2="{layout.end}" y1="{place}" y2="{place}"/>')
        text = f"{tick:,.{decimals}f}"
        parts.append(f'<text class="tick" x="{layout.left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{text}</text>')
    bottom = layout.floor
    for tick in x_ticks:
        at = f"{x(tick):.1f}"
        parts.append(f'<line class="axis" x1="{at}" x2="{at}" y1="{bottom}" y2="{bottom + 5}"/>')
        parts.append(f'<text class="tick" x="{at}" y="{bottom + 20}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<line class="axis" x1="{layout.left}" x2="{layout.end}" y1="{bottom}" y2="{bottom}"/>')
    return parts


def _axis_names(axes: Axes, layout: _Layout) -> list[str]:
    middle, height = (layout.left + layout.end) / 2, (layout.top + layout.floor) / 2
    below = f'<text x="{middle}" y="{layout.height - 8}" text-anchor="middle">{escape(axes.x_label)}</text>'
    if layout.names_above:  # there is no room next to the numbers
        return [below, f'<text class="tick" x="0" y="{layout.top - 12}">{escape(axes.y_label)}</text>']
    beside = f'<text transform="translate(14 {height}) rotate(-90)" text-anchor="middle">{escape(axes.y_label)}</text>'
    return [below, beside]


def _mark(at: float, text: str, axes: Axes, layout: _Layout) -> list[str]:
    low = layout.floor - 8 if not axes.from_zero else layout.top + 12
    return [
        f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{layout.top}" y2="{layout.floor}"/>',
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


def _names_at_ends(series: Sequence[Series], y: _Scale, axes: Axes, layout: _Layout) -> list[str]:
    """Returns names and values at the ends of the lines, moved apart where they would overlap."""
    ordered = sorted(series, key=lambda line: y(line.finite[-1][1]))
    places: list[float] = []
    for line in ordered:
        place = y(line.finite[-1][1]) + 4
        places.append(max(place, places[-1] + _LABEL_HEIGHT) if places else max(place, layout.top + 4))
    overflow = max(0.0, places[-1] - (layout.floor + 4))
    return [_name(line, layout.end + 10, place - overflow, axes) for line, place in zip(ordered, places, strict=True)]


def _names_above(series: Sequence[Series], axes: Axes) -> list[str]:
    """Returns names and values in two columns above the drawing."""
    return [
        _name(line, (number % 2) * _SECOND_COLUMN, 12 + (number // 2) * (_LABEL_HEIGHT + 2), axes)
        for number, line in enumerate(series)
    ]


def _name(series: Series, x: float, y: float, axes: Axes) -> str:
    text = f"{escape(series.label)} {escape(axes.y_text(series.last))}"
    return f'<text class="end" x="{x:g}" y="{y:.1f}" style="fill:var(--series-{series.key})">{text}</text>'
