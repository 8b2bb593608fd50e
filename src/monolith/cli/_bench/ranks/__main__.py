"""One rank: `python -m monolith.cli._bench.ranks`.

What it is comes as one line of JSON on standard input, and then one line for each turn, the kind and the number of
steps. It answers each, and its start, with one line of JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from monolith import collective
from monolith.cli._bench import ours
from monolith.cli._bench.setting import Setting
from monolith.cli._bench.skip import RowSkippedError
from monolith.cli._bench.timing import WARM_UP_STEPS, quiet_collector

if TYPE_CHECKING:
    from collections.abc import Callable

_JSON_OUT = 1
"""The descriptor of answers; what libraries print goes to standard error."""


def main() -> None:
    """Runs the program that standard input asks for."""
    told = os.dup(_JSON_OUT)
    os.dup2(sys.stderr.fileno(), _JSON_OUT)

    def answer(message: dict[str, Any]) -> None:
        os.write(told, json.dumps(message).encode() + b"\n")

    try:
        _run(json.loads(sys.stdin.readline()), answer)
    except RowSkippedError as skipped:
        answer({"skipped": str(skipped)})
    finally:
        collective.shutdown()


def _run(what: dict[str, Any], answer: Callable[[dict[str, Any]], None]) -> None:
    ours.use_threads(what["threads"])
    program = importlib.import_module(f"monolith.cli._bench.ranks.{what['program']}")
    with program.opened(Setting.from_json(what["setting"]), **what["options"]) as steps, quiet_collector():
        answer({"ready": True})
        made = 0
        for line in sys.stdin:
            asked = json.loads(line)
            step, count = steps[asked["way"]], asked["steps"]
            for number in range(made, made + WARM_UP_STEPS):
                step(number)
            begun, cpu = time.perf_counter(), time.process_time()
            for number in range(made, made + count):
                step(number + WARM_UP_STEPS)
            answer({"seconds": time.perf_counter() - begun, "cpu_seconds": time.process_time() - cpu})
            made += WARM_UP_STEPS + count


if __name__ == "__main__":
    main()
