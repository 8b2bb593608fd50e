"""Measuring rows one after the other, each in a process of its own."""

from __future__ import annotations

import dataclasses
import importlib
import time
from typing import TYPE_CHECKING, Any

from monolith.cli._bench import isolation, machine
from monolith.cli._bench.measurement import Measurement, RowSkippedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monolith.cli._bench.catalog import Row
    from monolith.cli._bench.setting import Setting

BUSY_LIMIT = 0.15
"""Above this share of processor time used by others, figures are not worth recording."""


@dataclasses.dataclass(kw_only=True, slots=True)
class Outcome:
    """What a run has measured so far."""

    measurements: list[Measurement] = dataclasses.field(default_factory=list)
    failed: list[str] = dataclasses.field(default_factory=list)
    """Rows that raised or died."""
    interrupted: bool = False
    busy: float = 0.0
    """The largest share of processor time that others used just before a row, as far as it is too much."""


def run(rows: Sequence[Row], setting: Setting, *, tell: Callable[[str], None]) -> Outcome:
    """Measures the rows in order. Ctrl-C ends the run and keeps the rows that were finished."""
    outcome = Outcome()
    try:
        for number, row in enumerate(rows, start=1):
            tell(f"[{number}/{len(rows)}] {row.key}: {row.title}")
            start = time.perf_counter()
            outcome.measurements += _measure(row, setting, outcome, tell)
            tell(f"[{number}/{len(rows)}] {row.key}: {time.perf_counter() - start:.0f} s")
    except KeyboardInterrupt:
        outcome.interrupted = True
        tell("interrupted: the rows above are what was measured")
    return outcome


def measure_row(setting: Setting, row: str) -> list[dict[str, Any]]:
    """Measures a row, given as ``module:function``, in this process; the result is JSON-able."""
    module, name = row.split(":")
    return [measurement.to_json() for measurement in getattr(importlib.import_module(module), name)(setting)]


def _measure(row: Row, setting: Setting, outcome: Outcome, tell: Callable[[str], None]) -> list[Measurement]:
    available, needed = machine.available_bytes(), row.needed_bytes(setting)
    if available is not None and available < needed:
        reason = f"needs {needed / 2**30:.1f} GiB of memory, {available / 2**30:.1f} GiB are free; try --quick"
        return [Measurement(row=row.key, measure=row.title, note=f"skipped: {reason}")]
    busy = machine.busy_ratio()
    if busy is not None and busy > BUSY_LIMIT:
        outcome.busy = max(outcome.busy, busy)
        tell(f"    the machine is {busy:.0%} busy with something else: the figures will be too low")
    try:
        answer = isolation.call("monolith.cli._bench.runner:measure_row", setting, row=row.function)
    except RowSkippedError as skipped:
        return [Measurement(row=row.key, measure=row.title, note=f"skipped: {skipped}")]
    except isolation.ChildFailedError as death:
        outcome.failed.append(row.key)
        return [Measurement(row=row.key, measure=row.title, note=f"failed: {death}")]
    return [Measurement.from_json(fields) for fields in answer]
