"""Measuring rows one after the other, each in a fresh process, so that memory, allocator caches and crashes stay apart.

The child is `python -m monolith.cli._bench.runner MODULE:FUNCTION ANSWER_FILE`, its arguments JSON on standard input.
It imports from the same folders as its parent. The answer goes to a file and its standard output to standard error:
libraries print as they like, and standard output belongs to the report.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monolith.cli._bench import machine
from monolith.cli._bench.measurement import Measurement, RowSkippedError
from monolith.cli._bench.setting import Setting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monolith.cli._bench.catalog import BenchRow

_STANDARD_ERROR = 2
"""The descriptor, whatever object stands for it in this process."""

INTERRUPTED = 130
"""Exit status of a process that Ctrl-C ended."""


class ChildFailedError(Exception):
    """The process ended without a result; its output is on standard error."""


def call(function: str, setting: Setting, **arguments: Any) -> Any:
    """Calls `module:function(setting, **arguments)` in a fresh process and returns its JSON-able result.

    Raises:
        RowSkippedError: The function raised it.
        ChildFailedError: The process died, or the function raised.
        KeyboardInterrupt: The child was interrupted.
    """
    with tempfile.TemporaryDirectory(prefix="monolith-bench-") as folder:
        answer_file = Path(folder) / "answer.json"
        # The interpreter that runs us, on a module of this package.
        child = subprocess.run(  # noqa: S603
            [sys.executable, "-m", "monolith.cli._bench.runner", function, str(answer_file)],
            input=json.dumps({"path": sys.path, "setting": setting.to_json(), "arguments": arguments}),
            stdout=_STANDARD_ERROR,
            text=True,
            check=False,
        )
        if child.returncode == INTERRUPTED:
            raise KeyboardInterrupt
        if not answer_file.exists():
            raise ChildFailedError(_describe_death(function, child.returncode))
        answer = json.loads(answer_file.read_text())
    if "error" in answer:
        raise ChildFailedError(answer["error"])
    if "skipped" in answer:
        raise RowSkippedError(answer["skipped"])
    return answer["result"]


def _describe_death(function: str, status: int) -> str:
    if status < 0:
        killed = f"{function} was killed by signal {-status}"
        return f"{killed}, probably out of memory" if status == -9 else killed
    return f"{function} ended with status {status}"


def _answer(function: str, request: dict[str, Any]) -> dict[str, Any]:
    sys.path[:] = request["path"]
    module, name = function.split(":")
    target = getattr(importlib.import_module(module), name)
    try:
        return {"result": target(Setting.from_json(request["setting"]), **request["arguments"])}
    except RowSkippedError as skipped:
        return {"skipped": str(skipped)}


def _main(function: str, answer_file: str) -> int:
    try:
        answer = _answer(function, json.load(sys.stdin))
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        # One line for the report; the full traceback follows on standard error.
        Path(answer_file).write_text(json.dumps({"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}))
        raise
    Path(answer_file).write_text(json.dumps(answer))
    return 0


BUSY_LIMIT = 0.15
"""Above this share of processor time used by others, figures are not worth recording."""


@dataclasses.dataclass(kw_only=True, slots=True)
class BenchOutcome:
    """Measurements of a run so far."""

    measurements: list[Measurement] = dataclasses.field(default_factory=list)
    failed: list[str] = dataclasses.field(default_factory=list)
    """Rows that raised or died."""
    interrupted: bool = False
    busy: float = 0.0
    """The largest share of processor time that others used just before a row, as far as it is too much."""


def run(rows: Sequence[BenchRow], setting: Setting, *, tell: Callable[[str], None]) -> BenchOutcome:
    """Measures the rows in order. Ctrl-C ends the run and keeps the rows that were finished."""
    outcome = BenchOutcome()
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


def _measure(row: BenchRow, setting: Setting, outcome: BenchOutcome, tell: Callable[[str], None]) -> list[Measurement]:
    available, needed = machine.available_bytes(), row.needed_bytes(setting)
    if available is not None and available < needed:
        reason = f"needs {needed / 2**30:.1f} GiB of memory, {available / 2**30:.1f} GiB are free; try --quick"
        return [Measurement(row=row.key, measure=row.title, note=f"skipped: {reason}")]
    busy = machine.busy_ratio()
    if busy is not None and busy > BUSY_LIMIT:
        outcome.busy = max(outcome.busy, busy)
        tell(f"    the machine is {busy:.0%} busy with something else: the figures will be too low")
    try:
        answer = call("monolith.cli._bench.runner:measure_row", setting, row=row.function)
    except RowSkippedError as skipped:
        return [Measurement(row=row.key, measure=row.title, note=f"skipped: {skipped}")]
    except ChildFailedError as death:
        outcome.failed.append(row.key)
        return [Measurement(row=row.key, measure=row.title, note=f"failed: {death}")]
    return [Measurement.from_json(fields) for fields in answer]


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
