"""The table as text, Markdown and JSON, and measurements as sentences."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

from monolith.cli._bench.measurement import Sense

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.cli._bench.measurement import Measurement
    from monolith.cli._bench.setting import Setting

HEADINGS = ("measure", "ours", "peer", "ratio", "must reach", "ok")
MEASURED = HEADINGS[:4]
"""The columns of the measurement, without a verdict."""

_HOW_TO_READ = (
    "Workload A is ids as traffic has them, few of them often; workload B is random rows, the worst case. "
    "A ratio is ours over the peer's, measured alternately in one run, so that a slow machine slows both; figures"
    " without a ratio hold for this machine only. monolith bench --check adds what we hold ourselves to."
)

_NOISE = 0.05
"""Ratios that differ by less from 1 are called equal: two runs differ by as much."""

_MANY = 4
"""Number of measurements of a row against one peer above which only their range is printed; the table has all."""


def as_ratios(measurements: Sequence[Measurement], machine: dict[str, str]) -> str:
    """Returns head, table without verdicts, and each ratio in words."""
    lines = [*_head(machine), *_columns(MEASURED, measurements), "", "What it means"]
    lines += [f"- {sentence}" for sentence in summary_in_words(measurements)]
    lines += ["", _HOW_TO_READ]
    return "\n".join(lines) + "\n"


def as_text(measurements: Sequence[Measurement], machine: dict[str, str]) -> str:
    """Returns head and table with the limits, notes below the table."""
    lines = [*_head(machine), *_columns(HEADINGS, measurements), "", summarize(measurements)]
    # Measurements against several peers share their note.
    lines += dict.fromkeys(
        f"- {measurement.measure}: {measurement.note}" for measurement in measurements if measurement.note
    )
    return "\n".join(lines) + "\n"


def _head(machine: dict[str, str]) -> list[str]:
    return [*(f"{name}: {value}" for name, value in machine.items()), ""]


def _columns(headings: Sequence[str], measurements: Sequence[Measurement]) -> list[str]:
    table = [headings, *(_cells(measurement)[: len(headings)] for measurement in measurements)]
    widths = [max(len(row[column]) for row in table) for column in range(len(headings))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def as_markdown(measurements: Sequence[Measurement], machine: dict[str, str]) -> str:
    """Returns the table for RESULTS.md, with a note as the last column."""
    lines = [f"- {name}: {value}" for name, value in machine.items()]
    lines += ["", "| " + " | ".join((*HEADINGS, "note")) + " |", "|" + "---|" * (len(HEADINGS) + 1)]
    lines += [
        "| " + " | ".join((*_cells(measurement), measurement.note.replace("|", "/"))) + " |"
        for measurement in measurements
    ]
    return "\n".join(lines) + "\n"


def as_json(measurements: Sequence[Measurement], machine: dict[str, str], setting: Setting) -> str:
    """Returns one object: machine, setting, measurements."""
    document = {
        "machine": machine,
        "setting": setting.to_json(),
        "measurements": [measurement.to_json() for measurement in measurements],
    }
    return json.dumps(document, indent=2) + "\n"


def summarize(measurements: Sequence[Measurement]) -> str:
    """Returns how many requirements were met."""
    judged = [measurement.ok for measurement in measurements if measurement.ok is not None]
    return f"{sum(judged)} of {len(judged)} requirements met"


def _cells(measurement: Measurement) -> tuple[str, ...]:
    figure = _number(measurement.figure)
    peer = f"{measurement.peer} {_number(measurement.peer_figure)}".strip()
    verdict = {True: "yes", False: "NO", None: ""}[measurement.ok]
    ours = f"{figure} {measurement.unit}".strip() if figure else ""
    return (measurement.measure, ours, peer, _number(measurement.ratio), measurement.requirement, verdict)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def summary_in_words(measurements: Sequence[Measurement]) -> list[str]:
    """Returns a sentence for each measurement, and one for a row that has many against the same peer."""
    lines = []
    for _, members in itertools.groupby(
        measurements, key=lambda measurement: (measurement.row, measurement.peer, measurement.unit)
    ):
        group = list(members)
        ratios = [measurement.ratio for measurement in group if measurement.ratio is not None]
        if len(group) > _MANY and len(ratios) == len(group):
            what = f"{group[0].row}, {len(group)} measures"
            lines.append(f"{what}: {min(ratios):.3g} to {max(ratios):.3g} times {group[0].peer}, {_better(group[0])}")
        else:
            lines += [in_words(measurement) for measurement in group]
    return list(dict.fromkeys(lines))


def in_words(measurement: Measurement) -> str:
    """Returns a measurement as a sentence, with its note."""
    sentence = _figure(measurement) if measurement.ratio is None else _comparison(measurement, measurement.ratio)
    note = f" ({measurement.note})" if measurement.note else ""
    return f"{measurement.measure}: {sentence}{note}"


def _figure(measurement: Measurement) -> str:
    if measurement.figure is None:
        return "not measured"
    figure = f"{measurement.figure:.3g} {measurement.unit}".rstrip()
    return (
        f"{figure}, not compared with {measurement.peer}" if measurement.peer else f"{figure}, {_better(measurement)}"
    )


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
