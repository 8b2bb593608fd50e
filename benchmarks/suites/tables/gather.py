"""Lookup alone on workload B, against what the memory gives: a gather of random 128-byte rows from an equal array."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from benchmarks.suites.processes import compile_program
from monolith.cli._bench import ours, workload
from monolith.cli._bench.measurement import Measurement, median_ratio, spread, tell
from monolith.cli._bench.timing import TimedStep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monolith.cli._bench.setting import Setting

SOURCE = Path(__file__).parent / "gather.cpp"
WAYS = {"library": "gather, memcpy", "fixed": "gather, row size compiled in"}
LIMIT = 0.5


class Gather:
    """The gather program, kept running so that it can take turns with ours."""

    def __init__(self, program: Path, *, array_bytes: int, threads: int) -> None:
        # Our own program, just compiled.
        self._process = subprocess.Popen(
            [program, str(array_bytes), str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._ask, self._answers = cast("IO[str]", self._process.stdin), cast("IO[str]", self._process.stdout)

    def turn(self, way: str, seconds: float) -> float:
        """Rows per second."""
        self._ask.write(f"{way} {seconds}\n")
        self._ask.flush()
        return float(self._answers.readline())

    def close(self) -> None:
        """Ends the program."""
        self._process.communicate()


def measure(setting: Setting) -> list[Measurement]:
    """Measures the large table."""
    ours.use_threads(setting.threads)
    gradient = workload.output_gradient(setting.ids_per_batch, ours.DIM)
    table = ours.Ours(ours.new_table(), gradient)
    tell(f"    filling {setting.large_rows:,} rows")
    ours.fill(table.table, setting.large_rows)
    lookups = TimedStep(table.lookup, workload.uniform_batches(setting, setting.large_rows))
    array_bytes = max(ours.memory_bytes(table.table), 1 << 25)
    figures: dict[str, list[float]] = {"ours": [], **{way: [] for way in WAYS}}
    with _running(array_bytes, setting.threads) as gather:
        gather.turn("library", setting.seconds / 10)  # it answers when its array has been filled
        for _ in range(setting.rounds):
            figures["ours"].append(lookups.turn(setting.seconds) * setting.ids_per_batch / 1e6)
            for way in WAYS:
                figures[way].append(gather.turn(way, setting.seconds) / 1e6)
    return [
        Measurement(
            row="gather",
            measure=f"lookup, B, {setting.large_rows:,} rows",
            figure=statistics.median(figures["ours"]),
            unit="M rows/s",
            peer=peer,
            peer_figure=statistics.median(figures[way]),
            ratio=median_ratio(figures["ours"], figures[way]),
            limit=LIMIT,
            note=f"array of {array_bytes / 2**30:.2f} GiB as the table has; ours {spread(figures['ours'])}",
        )
        for way, peer in WAYS.items()
    ]


@contextmanager
def _running(array_bytes: int, threads: int) -> Iterator[Gather]:
    with tempfile.TemporaryDirectory(prefix="monolith-gather-") as folder:
        program = compile_gather(Path(folder))
        gather = Gather(program, array_bytes=array_bytes, threads=threads)
        try:
            yield gather
        finally:
            gather.close()


def compile_gather(folder: Path) -> Path:
    """Compiles gather.cpp for this very machine and returns the program."""
    return compile_program(SOURCE, folder, "-O3", "-march=native", "-pthread")
