"""Workers as processes of their own, which train table steps on servers on request.

A worker is `python -m benchmarks.suites.ps.worker`: its config is one line of JSON on standard input, followed by one
line for each turn, the seconds to train. It responds to each, and at its start, with one line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

from benchmarks.suites.processes import child_environment
from benchmarks.suites.ps.servers import open_store
from benchmarks.suites.table_steps import TableSteps, configs, gradient_of
from monolith.cli._bench import ours, workload
from monolith.cli._bench.setting import Setting
from monolith.cli._bench.timing import WARM_UP_STEPS, quiet_collector

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.suites.ps.servers import Servers

_END_SECONDS = 60.0


class Turn(NamedTuple):
    """Results of one worker in a turn; times are those of the clock that all processes of a machine share."""

    begins: list[float]
    """When each step began; the last number is when the last one ended."""

    @property
    def rate(self) -> float:
        """Steps per second."""
        return (len(self.begins) - 1) / (self.begins[-1] - self.begins[0])

    @property
    def steps(self) -> list[tuple[float, float]]:
        """Start and end of each step."""
        return list(zip(self.begins, self.begins[1:], strict=False))


class Workers:
    """Some workers of one cluster."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self._processes = processes

    def begin_turn(self, seconds: float) -> None:
        """Starts training on all workers concurrently, for `seconds`."""
        for process in self._processes:
            ask = cast("IO[str]", process.stdin)
            ask.write(f"{seconds}\n")
            ask.flush()

    def end_turn(self) -> list[Turn]:
        """Waits for the end of the turn, and returns the results of each worker."""
        return [Turn(_answer_of(process)["begins"]) for process in self._processes]

    def turn(self, seconds: float) -> list[Turn]:
        """Runs a turn: `begin_turn`, then `end_turn`."""
        self.begin_turn(seconds)
        return self.end_turn()


@contextmanager
def running_workers(
    servers: Servers, count: int, setting: Setting, *, num_rows: int, threads: int
) -> Iterator[Workers]:
    """Workers 0 .. count - 1, ready to train; they end with the block."""
    # The interpreter that runs us, on this module.
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.suites.ps.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment(),
        )
        for _ in range(count)
    ]
    try:
        for worker, process in enumerate(processes):
            what = {"addresses": servers.addresses, "worker": worker, "num_rows": num_rows, "threads": threads}
            ask = cast("IO[str]", process.stdin)
            ask.write(json.dumps({**what, "setting": setting.to_json()}) + "\n")
            ask.flush()
        for process in processes:
            _answer_of(process)
        yield Workers(processes)
    finally:
        for process in processes:
            try:
                process.communicate(timeout=_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def _answer_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    line = cast("IO[str]", process.stdout).readline()
    if not line:
        raise RuntimeError("a worker of the benchmark ended; its error is above")
    answer: dict[str, Any] = json.loads(line)
    return answer


def _work(what: dict[str, Any]) -> None:
    ours.use_threads(what["threads"])
    setting = Setting.from_json(what["setting"])
    batches = workload.zipf_batches(setting, what["num_rows"])
    with open_store(what["addresses"], configs()) as store, quiet_collector():
        steps, number = TableSteps(store, what["worker"], gradient_of(setting)), 7 * what["worker"]
        for _ in range(WARM_UP_STEPS):
            steps.train_ahead(batches[number % len(batches)])
        _tell({"ready": True})
        for line in sys.stdin:
            until, begins = time.monotonic() + float(line), [time.monotonic()]
            while begins[-1] < until or len(begins) == 1:
                number += 1
                steps.train_ahead(batches[number % len(batches)])
                begins.append(time.monotonic())
            _tell({"begins": begins})
        steps.settle()


def _tell(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _work(json.loads(sys.stdin.readline()))
