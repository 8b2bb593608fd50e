"""Measures what checkpoints cost a run: the stall of a cut, the slowdown while one is written, the time to read one.

    python benchmarks/checkpoints.py --directory /data      # on the disk to measure
    python benchmarks/checkpoints.py --quick                # does everything run?

The model has a table of some million rows and a dense tower of 500 MB. The cut is the time that `save(background=True)`
keeps the training thread; the peer is a plain copy of the same bytes. Steps with and without a background save
alternate in one process; the rate of writing is up to the commit, the slowdown up to the end, when the checkpoint that
it replaces is removed. A restore is compared with a plain read of the same files, both with an empty page cache.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

import monolith as ml
from monolith.checkpoint import Saver, TrainState

MAX_TABLE_CUT_MS = 10.0
MAX_DENSE_CUT_MS = 50.0
MAX_SLOWDOWN = 0.10
MIN_WRITE_MB_S = 100.0
MIN_READ_RATIO = 0.7
BATCH = 4096


class Size(NamedTuple):
    """How much is saved."""

    rows: int
    dense_bytes: int
    rounds: int
    step_seconds: float


FULL = Size(rows=3_000_000, dense_bytes=500_000_000, rounds=5, step_seconds=6.0)
QUICK = Size(rows=20_000, dense_bytes=4_000_000, rounds=2, step_seconds=0.2)


class Line(NamedTuple):
    """One figure, its peer, and what must be reached."""

    name: str
    figure: str
    beside: str
    needed: str
    ok: bool


def embeddings(rows: int) -> ml.Embeddings:
    """A table filled to its size."""
    emb = ml.Embeddings({"user": ml.Slot(dim=16)})
    for begin in range(0, rows, 200_000):
        emb({"user": torch.arange(begin, min(rows, begin + 200_000))})["user"].sum().backward()
        emb.step()
    return emb


def dense_tower(num_bytes: int) -> nn.ParameterList:
    """Eight weights that make up the given number of bytes."""
    return nn.ParameterList(nn.Parameter(torch.randn(num_bytes // 32)) for _ in range(8))


def milliseconds(call: object) -> float:
    """Wall-clock time of one call."""
    begun = time.perf_counter()
    call()  # type: ignore[operator]
    return (time.perf_counter() - begun) * 1e3


def measure_cuts(folder: Path, size: Size) -> list[Line]:
    """The time that a background save keeps the thread that trains."""
    tables = TrainState(model=embeddings(size.rows))
    dense = TrainState(model=dense_tower(size.dense_bytes))
    source = [value.detach() for value in dense.model.parameters()] if dense.model is not None else []
    copies = [torch.zeros_like(value) for value in source]
    times: dict[str, list[float]] = {"tables": [], "dense": [], "copy": []}
    for name, state in (("tables", tables), ("dense", dense)):
        with Saver(folder / name, max_to_keep=1) as saver:
            saver.begin(preparing=state)
            for number in range(size.rounds):
                state.global_step = number
                times[name].append(milliseconds(lambda saver=saver, state=state: saver.save(state, background=True)))
                saver.wait()
                if name == "dense":
                    times["copy"].append(
                        milliseconds(lambda: [a.copy_(b) for a, b in zip(copies, source, strict=True)])
                    )
    limit = MAX_DENSE_CUT_MS * size.dense_bytes / 500e6
    cut, stall, copy = (statistics.median(times[name]) for name in ("tables", "dense", "copy"))
    return [
        Line(
            f"cut of a table of {size.rows:,} rows", f"{cut:.2f} ms", spread(times["tables"]),
            f"<= {MAX_TABLE_CUT_MS:g} ms", cut <= MAX_TABLE_CUT_MS,
        ),
        Line(
            f"cut of {size.dense_bytes / 1e6:.0f} MB of dense weights", f"{stall:.1f} ms",
            f"plain copy {copy:.1f} ms, ratio {stall / copy:.2f}; {spread(times['dense'])}",
            f"<= {limit:g} ms", stall <= limit,
        ),
    ]  # fmt: skip


def measure_slowdown(folder: Path, size: Size) -> list[Line]:
    """Steps per second with a background save and without, alternating."""
    emb = embeddings(size.rows)
    state = TrainState(model=emb)
    batches = [torch.randint(0, size.rows, (BATCH, 8)) for _ in range(64)]

    def steps(seconds: float, until: object = None) -> float:
        begun, count = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds and not (until is not None and until.done):  # type: ignore[attr-defined]
            emb({"user": batches[count % 64]})["user"].sum().backward()
            emb.step()
            count += 1
        return count / (time.perf_counter() - begun)

    steps(size.step_seconds / 4)
    slower, rates = [], []
    with Saver(folder / "slowdown", max_to_keep=1) as saver:
        saver.begin(preparing=state)
        for number in range(size.rounds):
            state.global_step = number
            alone = steps(size.step_seconds)
            pending = saver.save(state, background=True)
            begun = time.time()
            beside = steps(600.0, pending)
            saved = pending.wait()
            committed = Path(f"{saved.path}.manifest").stat().st_mtime
            rates.append(bytes_under(folder / "slowdown", Path(saved.path).name) / (committed - begun) / 1e6)
            slower.append(1 - beside / alone)
    loss, rate = statistics.median(slower), statistics.median(rates)
    return [
        Line(
            f"training while {size.rows:,} rows are written", f"{100 * loss:.1f} % slower",
            f"writing {rate:.0f} MB/s; {spread([100 * each for each in slower])} %",
            f"<= {100 * MAX_SLOWDOWN:g} % at >= {MIN_WRITE_MB_S:g} MB/s",
            loss <= MAX_SLOWDOWN and rate >= MIN_WRITE_MB_S,
        )
    ]  # fmt: skip


def measure_restore(folder: Path, size: Size) -> list[Line]:
    """Restoring from files that are not in the page cache, against reading them."""
    target = folder / "restore"

    class Model(nn.Module):
        def __init__(self, rows: int) -> None:
            super().__init__()
            self.emb = embeddings(rows)
            self.tower = dense_tower(size.dense_bytes)

    with Saver(target) as saver:
        saver.save(TrainState(model=Model(size.rows)))
    files = sorted(path for path in target.rglob("*") if path.is_file())
    total = sum(path.stat().st_size for path in files)
    ratios, reads, restores = [], [], []
    for _ in range(size.rounds):
        forget(files)
        reads.append(milliseconds(lambda: read_all(files)))
        state = TrainState(model=Model(0))
        forget(files)
        restores.append(milliseconds(lambda state=state: Saver(target).restore(state)))
        ratios.append(reads[-1] / restores[-1])
    ratio = statistics.median(ratios)
    return [
        Line(
            f"restore of {total / 1e6:.0f} MB", f"{total / statistics.median(restores) / 1e3:.0f} MB/s",
            f"cold read {total / statistics.median(reads) / 1e3:.0f} MB/s, ratio {ratio:.2f}",
            f">= {MIN_READ_RATIO:g} x", ratio >= MIN_READ_RATIO,
        )
    ]  # fmt: skip


def bytes_under(folder: Path, prefix: str) -> int:
    """Of all files of a checkpoint."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and prefix in str(path))


def forget(files: list[Path]) -> None:
    """Drops them from the page cache."""
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_all(files: list[Path]) -> None:
    """Every byte, one file after the other."""
    buffer = bytearray(8 << 20)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def spread(values: list[float]) -> str:
    """Lowest and highest."""
    return f"{min(values):.3g}..{max(values):.3g}"


def main(arguments: list[str] | None = None) -> int:
    """Prints the table; the status is 0 if every requirement was met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--quick", action="store_true", help="small sizes: shows that it runs, not what the figures are"
    )
    parser.add_argument("--directory", default=tempfile.gettempdir(), help="on the disk to measure")
    args = parser.parse_args(arguments)
    size = QUICK if args.quick else FULL
    lines: list[Line] = []
    for measure in (measure_cuts, measure_slowdown, measure_restore):
        with tempfile.TemporaryDirectory(prefix="monolith-checkpoints-", dir=args.directory) as folder:
            lines += measure(Path(folder), size)
    print("| measure | figure | peer | must reach | ok |\n|---|---|---|---|---|")
    for line in lines:
        print(f"| {line.name} | {line.figure} | {line.beside} | {line.needed} | {'yes' if line.ok else 'NO'} |")
    return 0 if args.quick or all(line.ok for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
