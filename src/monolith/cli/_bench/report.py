"""The table as text, Markdown and JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.cli._bench.measurement import Measurement
    from monolith.cli._bench.setting import Setting

HEADINGS = ("measure", "ours", "peer", "ratio", "must reach", "ok")


def as_text(measurements: Sequence[Measurement], machine: dict[str, str]) -> str:
    """Head and table in columns, notes below the table."""
    lines = [f"{name}: {value}" for name, value in machine.items()]
    table = [HEADINGS, *(_cells(each) for each in measurements)]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEADINGS))]
    lines.append("")
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    lines += ["", summarize(measurements)]
    # Measurements against several peers share their note.
    lines += dict.fromkeys(f"- {each.measure}: {each.note}" for each in measurements if each.note)
    return "\n".join(lines) + "\n"


def as_markdown(measurements: Sequence[Measurement], machine: dict[str, str]) -> str:
    """The same for RESULTS.md, a note as the last column."""
    lines = [f"- {name}: {value}" for name, value in machine.items()]
    lines += ["", "| " + " | ".join((*HEADINGS, "note")) + " |", "|" + "---|" * (len(HEADINGS) + 1)]
    lines += ["| " + " | ".join((*_cells(each), each.note.replace("|", "/"))) + " |" for each in measurements]
    return "\n".join(lines) + "\n"


def as_json(measurements: Sequence[Measurement], machine: dict[str, str], setting: Setting) -> str:
    """One object: machine, setting, measurements."""
    document = {
        "machine": machine,
        "setting": setting.to_json(),
        "measurements": [measurement.to_json() for measurement in measurements],
    }
    return json.dumps(document, indent=2) + "\n"


def summarize(measurements: Sequence[Measurement]) -> str:
    """How many requirements were met."""
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
