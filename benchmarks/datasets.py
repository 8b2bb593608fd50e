"""Measures datasets: ours against the plain ways, alternating, in one run.

    python benchmarks/datasets.py            # about four minutes
    python benchmarks/datasets.py --quick    # small inputs: does everything run?

- TFRecord with checksums, as a dataset of blocks: against a plain read of the same file into one buffer again and
  again, of which 60 % must be reached. The file is in the page cache, so no disk is measured. All threads of the core.
- Parquet to `Batch`: against pyarrow's own read of the same columns, of which 70 % must be reached: block by block, as
  we read, and as one table.
- CSV to `Batch`, two columns of texts as ids among its six: against pyarrow's own reader of the file, of which 70 %
  must be reached. Types are inferred by both.
- Texts to ids: 20 million a second on two threads must be reached.
- A DataLoader with two worker processes: against `prefetch` of the same pipeline, not to be slower. A function of
  Python that takes a millisecond for a batch stands for what users do to batches; workers stay between epochs.
- What a step of a pipeline costs: a batch moved through `prefetch`, and `position` after each batch.
- Memory: the largest resident set of a pipeline over a generated stream of 5 GB (shuffle, batch, parse and prefetch),
  above what the process had before it, against what its buffers hold.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv as pa_csv
from torch.utils.data import DataLoader

from monolith.data import (
    Batch,
    CsvDataset,
    GeneratedDataset,
    Ids,
    InMemoryDataset,
    Label,
    ParquetDataset,
    Parser,
    RecordDataset,
    Records,
    write_examples,
)
from monolith.data.protos.example_pb2 import Example
from monolith.data.sources.arrow_columns import text_column

if TYPE_CHECKING:
    from collections.abc import Callable


ROUNDS = 7
TURN_SECONDS = 0.5
RECORD_BYTES = 2300
BLOCK_ROWS = 1 << 14


def main() -> int:
    """Measure and print; 1 when something that must be reached was not."""
    parser = argparse.ArgumentParser(description="Measures datasets.")
    parser.add_argument("--quick", action="store_true", help="small inputs")
    parser.add_argument("--stream", type=float, metavar="GB", help="only read such a stream, and print its memory")
    args = parser.parse_args()
    if args.stream is not None:
        print(*stream_memory(args.stream))
        return 0
    print("| measure | ours | peer | ratio | must reach | ok |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        good = [
            tfrecords(Path(folder), records=2_000 if args.quick else 100_000),
            parquet(Path(folder), rows=20_000 if args.quick else 400_000),
            csv_files(Path(folder), rows=20_000 if args.quick else 1_000_000),
            texts(count=50_000 if args.quick else 4_000_000),
            loader(Path(folder)),
            steps(),
            memory(gigabytes=0.05 if args.quick else 5.0),
        ]
    return 0 if all(good) else 1


def tfrecords(folder: Path, *, records: int) -> bool:
    """Blocks of a TFRecord file, with checksums, against a plain read."""
    path = folder / "examples.tfrecord"
    random = np.random.default_rng(1)
    payloads = [example(random) for _ in range(256)]
    write_examples(path, (payloads[number % len(payloads)] for number in range(records)), "tfrecord")
    dataset = RecordDataset(path, "tfrecord")

    def ours() -> int:
        return sum(len(block) for block in dataset)

    def plain() -> int:
        buffer = bytearray(1 << 20)
        total = 0
        with path.open("rb", buffering=0) as file:
            while got := file.readinto(buffer):
                total += got
        return total

    def whole() -> int:
        return len(path.read_bytes())

    if ours() != records:
        raise AssertionError("records were lost")
    megabytes = path.stat().st_size / 1e6
    name = f"TFRecord with checksums, {len(payloads[0])} B records, {os.cpu_count()} threads"
    good = compare(name, ours, ("plain read, one buffer", plain), work=megabytes, unit="MB/s", must=0.6)
    compare(name, ours, ("plain read, complete file", whole), work=megabytes, unit="MB/s")
    return good


def parquet(folder: Path, *, rows: int) -> bool:
    """Batches of a Parquet file against pyarrow's own read of the same columns."""
    path = folder / "clicks.parquet"
    random = np.random.default_rng(2)
    ids = {f"slot_{number}": id_lists(random, rows) for number in range(8)}
    dense = {f"dense_{number}": pa.array(random.random(rows, dtype=np.float32)) for number in range(8)}
    others = {f"other_{number}": id_lists(random, rows) for number in range(4)}
    pq.write_table(pa.table({**ids, **dense, "label": pa.array(random.integers(2, size=rows)), **others}), path)
    columns = [*ids, *dense, "label"]

    def ours() -> int:
        return sum(batch.num_rows for batch in ParquetDataset(path, columns, block_rows=BLOCK_ROWS))

    def blocks() -> int:
        with pq.ParquetFile(path) as file:
            return sum(block.num_rows for block in file.iter_batches(batch_size=BLOCK_ROWS, columns=columns))

    def table() -> int:
        return int(pq.read_table(path, columns=columns).num_rows)

    if ours() != rows:
        raise AssertionError("rows were lost")
    name, work = "Parquet to Batch, 17 of 21 columns", rows / 1e3
    against_blocks = compare(name, ours, ("pyarrow, block by block", blocks), work=work, unit="k rows/s", must=0.7)
    against_table = compare(name, ours, ("pyarrow, one table", table), work=work, unit="k rows/s", must=0.7)
    return against_blocks and against_table


def csv_files(folder: Path, *, rows: int) -> bool:
    """Batches of a CSV file against pyarrow's own reader."""
    path = folder / "clicks.csv"
    random = np.random.default_rng(4)
    table = pa.table(
        {
            "user": [f"user_{number}" for number in random.integers(100_000, size=rows)],
            "item": random.integers(10**9, size=rows),
            "genre": [f"g{number}" for number in random.integers(30, size=rows)],
            "age": random.integers(1, 90, size=rows),
            "price": random.random(rows),
            "label": random.integers(2, size=rows),
        }
    )
    pa_csv.write_csv(table, path)

    def ours() -> int:
        return sum(batch.num_rows for batch in CsvDataset(path))

    def blocks() -> int:
        with pa_csv.open_csv(path) as file:
            return sum(block.num_rows for block in file)

    if ours() != rows:
        raise AssertionError("rows were lost")
    name, work = "CSV to Batch, 2 of 6 columns are texts", rows / 1e3
    compare(name, ours, ("pyarrow, block by block", blocks), work=work, unit="k rows/s")
    return compare(
        name, ours, ("pyarrow, one table", lambda: pa_csv.read_csv(path)), work=work, unit="k rows/s", must=0.7
    )


def texts(*, count: int) -> bool:
    """Ids of texts, on all threads."""
    array = pa.array([f"user_{number}" for number in range(count)])
    rate = count / seconds_of(lambda: text_column(array, "user")) / 1e6
    line(f"texts to ids, {os.cpu_count()} threads", f"{rate:.0f} M texts/s", "", "", ">= 20 M texts/s", ok=rate >= 20)
    return rate >= 20


def loader(folder: Path) -> bool:
    """Batches through worker processes against batches through a thread."""
    dataset = CsvDataset(folder / "clicks.csv").batch(1024).map(_a_users_function)
    workers = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    rows = sum(batch.num_rows for batch in workers)

    def ours() -> int:
        return sum(batch.num_rows for batch in workers)

    def thread() -> int:
        return sum(batch.num_rows for batch in dataset.prefetch(4))

    name = "DataLoader with two workers, batches of 1,024 of a CSV file"
    return compare(name, ours, ("prefetch", thread), work=rows / 1e3, unit="k rows/s", must=1.0)


def _a_users_function(batch: Batch) -> Batch:
    """A millisecond of Python."""
    total, until = 0, time.thread_time() + 1e-3
    while time.thread_time() < until:
        total += 1
    return batch


def steps() -> bool:
    """What a batch costs in steps that do nothing to it."""
    count = 2_000
    blocks = InMemoryDataset(range(count))
    plain = seconds_of(lambda: sum(1 for _ in blocks)) / count
    prefetched = seconds_of(lambda: sum(1 for _ in blocks.prefetch(4))) / count
    pipeline = blocks.shuffle(64).batch(1).prefetch(4)
    deep = seconds_of(lambda: sum(1 for _ in pipeline)) / count
    added = (prefetched - plain) * 1e6
    line("prefetch, added to a batch", f"{added:.1f} us", "", "", "<= 50 us", ok=added <= 50)
    line("shuffle, batch and prefetch with positions, a batch", f"{deep * 1e6:.1f} us", "", "", "", ok=None)
    return added <= 50


def memory(*, gigabytes: float) -> bool:
    """The memory of a pipeline over a stream, in a process of its own."""
    command = [sys.executable, __file__, "--stream", str(gigabytes)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    grown, held, rows = (float(number) for number in output.split())
    limit = 4 * held
    line(
        f"memory of a pipeline over {gigabytes:g} GB ({rows:,.0f} rows), above that of the idle process",
        f"{grown:,.0f} MB",
        f"its buffers hold {held:,.0f} MB",
        f"{grown / held:.2g}",
        f"<= {limit:,.0f} MB",
        ok=grown <= limit,
    )
    return grown <= limit


def stream_memory(gigabytes: float) -> tuple[float, float, int]:
    """Megabytes by which the process grew, megabytes that the buffers of the pipeline hold, and rows read."""
    random = np.random.default_rng(3)
    payloads = [example(random) for _ in range(450)]
    size = sum(map(len, payloads)) / 1e6
    parser = Parser("example", [Ids(f"slot_{slot}") for slot in range(40)] + [Label()])

    def blocks(count: int) -> GeneratedDataset[Records]:
        return GeneratedDataset(lambda _: Records.from_list(payloads), count)

    def run(count: int) -> tuple[int, float]:
        rows, most = 0, 0.0
        for batch in blocks(count).shuffle(4500, seed=1).batch(512).prefetch(4).parse(parser).prefetch(4):
            rows, most = rows + batch.num_rows, max(most, resident_megabytes())
        return rows, most

    run(4)  # threads and their stacks, code, the allocator's first arenas
    before = resident_megabytes()
    rows, most = run(round(gigabytes * 1e3 / size))
    grown = most - before
    # A window of the shuffle, its pieces and the window that is being filled; batches in two queues and at their doors.
    window, batch = 4500 * RECORD_BYTES / 1e6, 512 * RECORD_BYTES / 1e6
    return round(grown, 1), round(3 * window + 12 * batch, 1), rows


def resident_megabytes() -> float:
    """Now, not at most: the most was reached while modules were imported."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def compare(
    name: str,
    ours: Callable[[], object],
    peer: tuple[str, Callable[[], object]],
    *,
    work: float,
    unit: str,
    must: float | None = None,
) -> bool:
    """One line of the table; whether what must be reached was."""
    peer_name, theirs = peer
    rates, peer_rates, ratios = in_turns(ours, theirs, work)
    ratio = statistics.median(ratios)
    line(
        name,
        f"{statistics.median(rates):,.0f} {unit}",
        f"{peer_name} {statistics.median(peer_rates):,.0f}",
        f"{ratio:.3g}",
        "" if must is None else f">= {must} x",
        ok=None if must is None else ratio >= must,
    )
    return must is None or ratio >= must


def in_turns(
    ours: Callable[[], object], peer: Callable[[], object], work: float
) -> tuple[list[float], list[float], list[float]]:
    """Rates of both in work per second, and their ratio, by round; the order changes from round to round."""
    ours(), peer()
    rates: dict[int, list[float]] = {0: [], 1: []}
    for round_number in range(ROUNDS):
        for which in (0, 1) if round_number % 2 else (1, 0):
            rates[which].append(work / seconds_of((ours, peer)[which]))
    return rates[0], rates[1], [mine / theirs for mine, theirs in zip(rates[0], rates[1], strict=True)]


def seconds_of(call: Callable[[], object]) -> float:
    """Seconds of one call, over a turn of many."""
    calls, begin = 0, time.perf_counter()
    while (seconds := time.perf_counter() - begin) < TURN_SECONDS or not calls:
        call()
        calls += 1
    return seconds / calls


def line(name: str, ours: str, peer: str, ratio: str, must: str, *, ok: bool | None) -> None:
    """Prints one line of the table."""
    print(
        f"| {name} | {ours} | {peer} | {ratio} | {must} | {'' if ok is None else 'yes' if ok else 'NO'} |", flush=True
    )


def example(random: np.random.Generator) -> bytes:
    """A sample of 40 slots, of about `RECORD_BYTES` bytes."""
    sample = Example(label=[float(random.integers(2))])
    for slot in range(40):
        values = sample.named_feature.add(name=f"slot_{slot}", id=slot).feature.fid_v2_list.value
        values.extend(((slot << 48) + random.integers(1 << 40, size=4)).tolist())
    return sample.SerializeToString()


def id_lists(random: np.random.Generator, rows: int) -> pa.Array:
    """A column of 1 to 5 ids in each row."""
    offsets = np.concatenate([[0], np.cumsum(random.integers(1, 6, size=rows))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(random.integers(1 << 48, size=int(offsets[-1]))))


if __name__ == "__main__":
    sys.exit(main())
