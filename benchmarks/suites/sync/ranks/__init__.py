"""Programs of the ranks of a benchmark, one module each; `rank_processes` starts them.

A program is `opened(setting, **options)`: it opens what it needs and yields its kinds of steps by name, each a function
of the number of the step.
"""

from __future__ import annotations

import importlib
import json
import socket
import time
from typing import TYPE_CHECKING, Any, TextIO

from monolith import collective
from monolith.cli._bench import ours
from monolith.cli._bench.measurement import RowSkippedError
from monolith.cli._bench.setting import Setting
from monolith.cli._bench.timing import WARM_UP_STEPS, quiet_collector

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["answer_questions"]


def answer_questions(arguments: Sequence[str]) -> int:
    """Runs a rank to its end, and returns its exit code.

    Args:
        arguments: The descriptor of a socket. It brings what the rank is as one line of JSON, and then one line for
            each turn, the kind and the number of steps. The rank answers each, and its start, with one line of JSON.
    """
    with socket.socket(fileno=int(arguments[0])) as connection, connection.makefile("rw", encoding="utf-8") as lines:
        try:
            _run(json.loads(lines.readline()), lines)
        except RowSkippedError as skipped:
            _answer(lines, {"skipped": str(skipped)})
        finally:
            collective.shutdown()
    return 0


def _run(what: dict[str, Any], lines: TextIO) -> None:
    ours.use_threads(what["threads"])
    program = importlib.import_module(f"benchmarks.suites.sync.ranks.{what['program']}")
    with program.opened(Setting.from_json(what["setting"]), **what["options"]) as steps, quiet_collector():
        _answer(lines, {"ready": True})
        made = 0
        for line in iter(lines.readline, ""):
            asked = json.loads(line)
            step, count = steps[asked["way"]], asked["steps"]
            for number in range(made, made + WARM_UP_STEPS):
                step(number)
            begun, cpu = time.perf_counter(), time.process_time()
            for number in range(made, made + count):
                step(number + WARM_UP_STEPS)
            _answer(lines, {"seconds": time.perf_counter() - begun, "cpu_seconds": time.process_time() - cpu})
            made += WARM_UP_STEPS + count


def _answer(lines: TextIO, message: dict[str, Any]) -> None:
    lines.write(json.dumps(message) + "\n")
    lines.flush()
