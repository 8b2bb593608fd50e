"""Measurements as sentences."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from monolith.cli._bench.measurement import Sense

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.cli._bench.measurement import Measurement

__all__ = ["in_words", "summary_in_words"]

_NOISE = 0.05
"""Ratios that differ by less from 1 are called equal: two runs differ by as much."""

_MANY = 4
"""Number of measurements of a row against one peer above which only their range is printed; the table has all."""


def summary_in_words(measurements: Sequence[Measurement]) -> list[str]:
    """Returns a sentence for each measurement, and one for a row that has many against the same peer."""
    lines = []
    for _, found in itertools.groupby(measurements, key=lambda each: (each.row, each.peer, each.unit)):
        group = list(found)
        ratios = [each.ratio for each in group if each.ratio is not None]
        if len(group) > _MANY and len(ratios) == len(group):
            what = f"{group[0].row}, {len(group)} measures"
            lines.append(f"{what}: {min(ratios):.3g} to {max(ratios):.3g} times {group[0].peer}, {_better(group[0])}")
        else:
            lines += [in_words(each) for each in group]
    return list(dict.fromkeys(lines))


def in_words(measurement: Measurement) -> str:
    """Returns a measurement as a sentence, with its note."""
    found = _figure(measurement) if measurement.ratio is None else _comparison(measurement, measurement.ratio)
    note = f" ({measurement.note})" if measurement.note else ""
    return f"{measurement.measure}: {found}{note}"


def _figure(measurement: Measurement) -> str:
    if measurement.figure is None:
        return "not measured"
    found = f"{measurement.figure:.3g} {measurement.unit}".rstrip()
    return f"{found}, not compared with {measurement.peer}" if measurement.peer else f"{found}, {_better(measurement)}"


def _comparison(measurement: Measurement, ratio: float) -> str:
    is_speed = measurement.unit.endswith("/s")
    if abs(ratio - 1) < _NOISE:
        return f"{'as fast as' if is_speed else 'the same as'} {measurement.peer}"
    if is_speed:
        times = f"{ratio:.3g} times as fast as" if ratio > 1 else f"{ratio:.0%} of the speed of"
        return f"{times} {measurement.peer}"
    return f"{ratio:.3g} times {measurement.peer}, {_better(measurement)}"


def _better(measurement: Measurement) -> str:
    return "less is better" if measurement.sense is Sense.AT_MOST else "more is better"
