"""The table as text, Markdown and JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from monolith.cli._bench.words import summary_in_words

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


def as_ratios(measurements: Sequence[Measurement], machine: dict[str, str]) -> str:
    """Returns head, table without verdicts, and each ratio in words."""
    lines = [*_head(machine), *_columns(MEASURED, measurements), "", "What it means"]
    lines += [f"- {each}" for each in summary_in_words(measurements)]
    lines += ["", _HOW_TO_READ]
    return "\n".join(lines) + "\n"


def as_text(measurements: Sequence[Measurement], machine: dict[str, str]) -> str:
    """Returns head and table with the limits, notes below the table."""
    lines = [*_head(machine), *_columns(HEADINGS, measurements), "", summarize(measurements)]
    # Measurements against several peers share their note.
    lines += dict.fromkeys(f"- {each.measure}: {each.note}" for each in measurements if each.note)
    return "\n".join(lines) + "\n"


def _head(machine: dict[str, str]) -> list[str]:
    return [*(f"{name}: {value}" for name, value in machine.items()), ""]


def _columns(headings: Sequence[str], measurements: Sequence[Measurement]) -> list[str]:
    table = [headings, *(_cells(each)[: len(headings)] for each in measurements)]
    widths = [max(len(row[column]) for row in table) for column in range(len(headings))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def as_markdown(measurements: Sequence[Measurement], machine: dict[str, str]) -> str:
    """Returns the table for RESULTS.md, with a note as the last column."""
    lines = [f"- {name}: {value}" for name, value in machine.items()]
    lines += ["", "| " + " | ".join((*HEADINGS, "note")) + " |", "|" + "---|" * (len(HEADINGS) + 1)]
    lines += ["| " + " | ".join((*_cells(each), each.note.replace("|", "/"))) + " |" for each in measurements]
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
    judged = [each.ok for each in measurements if each.ok is not None]
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
