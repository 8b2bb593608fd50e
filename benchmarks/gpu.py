"""Measures tables in the memory of a GPU (`CudaStore`) next to torch's own operations and to `LocalStore`.

    python benchmarks/gpu.py                      # some minutes on a machine with a CUDA device
    python benchmarks/gpu.py --rows 3000000       # smaller tables

Calls that wait for nothing are timed by CUDA events, others by the wall; the figure is the median of the rounds, in
which both sides take turns. torch's side has the row numbers ready, so it does not search.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import torch

from monolith.tables import BatchStamp, CudaStore, LocalStore, Segment, Store, TableConfig, Update, WorkerSession
from monolith.tables.initializers import Zeros
from monolith.tables.row_optimizers import Adagrad

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

DIM, BATCH, ROUNDS = 16, 1 << 20, 7
EXAMPLES, SLOTS, ZIPF = 65_536, 26, 1.05
_MIX = -7046029254386353131


class Line(NamedTuple):
    """One line of the table."""

    what: str
    seconds: float
    items: int
    peer: str
    peer_seconds: float

    def __str__(self) -> str:
        ratio = self.peer_seconds / self.seconds
        return (
            f"| {self.what} | {1e3 * self.seconds:.3f} ms | {self.items / self.seconds / 1e9:.2f} B/s | {self.peer}:"
            f" {1e3 * self.peer_seconds:.3f} ms | {ratio:.2f} x |"
        )


def configs() -> dict[str, TableConfig]:
    """Returns one table of the dim that all lines share."""
    return {"rows": TableConfig([Segment(DIM, initializer=Zeros(), optimizer=Adagrad(learning_rate=0.05))])}


def ids_of(numbers: Tensor) -> Tensor:
    """Returns ids that are spread over all of int64."""
    return numbers * _MIX


class Trainer:
    """One worker of a store, which counts its batches."""

    def __init__(self, store: Store) -> None:
        self.store, self.session, self.seq = store, store.join(0), -1
        self.rates = torch.tensor([0.05])

    def plan(self, ids: Tensor) -> object:
        """Returns the plan of the next batch."""
        return self.session.plan(ids, torch.tensor([0, len(ids)]), stamp=BatchStamp(worker=0, seq=self.seq + 1))

    def step(self, plan: object, gradient: Tensor) -> None:
        """Applies the gradient of a plan of the next batch."""
        update = Update(step=0, learning_rates=self.rates, times=1_700_000_000, previous=self.seq, known_finite=True)
        self.session.apply([(plan, gradient)], update).result()  # type: ignore[list-item]
        self.seq += 1


def fill(trainer: Trainer, rows: int) -> float:
    """Inserts rows; returns the seconds of the longest call above the median."""
    gradient, calls = torch.full((BATCH * DIM,), 0.01, device=device_of(trainer.store)), []
    for begin in range(0, rows, BATCH):
        plan = trainer.plan(ids_of(torch.arange(begin, begin + BATCH)))
        synchronize()
        begun = time.perf_counter()
        trainer.step(plan, gradient)
        calls.append(time.perf_counter() - begun)
    return max(calls) - statistics.median(calls)


def device_of(store: Store) -> torch.device:
    """Returns the device of a store's rows."""
    return torch.device(store.traits.device)


def synchronize() -> None:
    """Waits for the GPU."""
    torch.cuda.synchronize()


def timed(call: Callable[[], object], *, by_events: bool) -> float:
    """Returns the seconds of one call on the GPU, or of the wall until the GPU is idle."""
    synchronize()
    if by_events:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        call()
        end.record()
        synchronize()
        return float(begin.elapsed_time(end)) / 1e3
    begun = time.perf_counter()
    call()
    synchronize()
    return time.perf_counter() - begun


def compared(ours: Callable[[], object], peers: Callable[[], object], *, by_events: bool) -> tuple[float, float]:
    """Returns the medians of both calls, which take turns; the first round does not count."""
    rounds = [(timed(ours, by_events=by_events), timed(peers, by_events=by_events)) for _ in range(ROUNDS + 1)][1:]
    return statistics.median(one for one, _ in rounds), statistics.median(other for _, other in rounds)


def measure_rows(trainer: Trainer, rows: int) -> list[Line]:
    """Reads and updates of 1M distinct ids, against torch by row numbers."""
    device = device_of(trainer.store)
    numbers = torch.randperm(rows)[:BATCH]
    on_device = numbers.to(device)
    weights, state = torch.zeros(rows, DIM, device=device), torch.full((rows, DIM), 0.1, device=device)
    gradient = torch.full((BATCH, DIM), 0.01, device=device)
    plan = trainer.plan(ids_of(numbers))
    read = compared(
        lambda: trainer.store.read(plan, step=0).result(),  # type: ignore[arg-type]
        lambda: weights.index_select(0, on_device),
        by_events=True,
    )

    def update() -> None:
        trainer.session.read(own := trainer.plan(ids_of(numbers)), after=trainer.seq, step=0, train=True)  # type: ignore[arg-type]
        trainer.step(own, gradient.view(-1))

    def torch_update() -> None:
        torch.unique(ids_of(numbers).to(device), return_inverse=True)
        weights.index_select(0, on_device)
        state.index_add_(0, on_device, gradient * gradient)
        weights.index_add_(0, on_device, -0.05 * gradient / state.index_select(0, on_device).sqrt())

    whole = compared(update, torch_update, by_events=False)
    return [
        Line("read of 1M distinct ids", read[0], BATCH, "torch index_select, row numbers ready", read[1]),
        Line(
            "plan, read, apply of 1M distinct ids", whole[0], BATCH, "torch unique, index_select, index_add_", whole[1]
        ),
    ]


def zipf_batch(rows: int) -> Tensor:
    """Returns the ids of a batch of 65,536 examples with 26 slots, each with ids of its own, few of them frequent."""
    of_slot = rows // SLOTS
    cumulative = torch.arange(1, of_slot + 1, dtype=torch.float64).pow(-ZIPF).cumsum(0)
    draws = torch.rand(SLOTS, EXAMPLES, dtype=torch.float64) * cumulative[-1]
    first = torch.arange(SLOTS)[:, None] * of_slot
    return ids_of((first + torch.searchsorted(cumulative, draws)).view(-1))


def measure_steps(trainer: Trainer, local: Trainer, rows: int) -> list[Line]:
    """A table step of a batch with frequent ids, against torch's `unique` and against `LocalStore`."""
    ids = zipf_batch(min(rows, 30_000_000))
    on_device = ids.cuda()
    plan = compared(
        lambda: trainer.plan(on_device),
        lambda: torch.unique(on_device, return_inverse=True, return_counts=True),
        by_events=False,
    )

    def step(side: Trainer) -> None:
        own = side.plan(ids)
        rows_read = side.session.read(own, after=side.seq, step=0, train=True).result()  # type: ignore[arg-type]
        side.step(own, torch.full_like(rows_read.values, 0.01))

    whole = compared(lambda: step(trainer), lambda: step(local), by_events=False)
    return [
        Line(f"plan of {EXAMPLES:,} x {SLOTS} ids", plan[0], len(ids), "torch.unique with inverse and counts", plan[1]),
        Line(f"plan, read, apply of {EXAMPLES:,} x {SLOTS} ids", whole[0], len(ids), "LocalStore", whole[1]),
    ]


def measure_changes(trainer: Trainer, local: Trainer, rows: int) -> list[Line]:
    """The cut of all rows, and the changes of a hundredth of them, against `LocalStore`."""
    readers = [side.store.open_reader("log") for side in (trainer, local)]
    gradient = torch.full((rows // 100 * DIM,), 0.01)
    for side in (trainer, local):
        side.step(side.plan(ids_of(torch.randperm(rows)[: rows // 100])), gradient.to(device_of(side.store)))
    changed = compared(
        lambda: readers[0].packed_changes(state=True), lambda: readers[1].packed_changes(state=True), by_events=False
    )
    for reader in readers:
        reader.close()

    def cut(session: WorkerSession) -> None:
        session.cut().release()

    cuts = compared(lambda: cut(trainer.session), lambda: cut(local.session), by_events=False)
    return [
        Line("changes of 1 % of the rows as blocks", changed[0], rows // 100, "LocalStore", changed[1]),
        Line("opening a cut", cuts[0], rows, "LocalStore", cuts[1]),
    ]


def main() -> int:
    """Measures everything and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=30_000_000, help="rows of the table")
    parser.add_argument("--local-rows", type=int, default=3_000_000, help="rows of the tables that LocalStore has, too")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print(f"gpu.py: torch {torch.__version__} finds no GPU here; run it on a machine with CUDA", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {args.rows:,} rows of dim {DIM}, Adagrad")
    print("| what | time | items | peer | peer's time / ours |\n|---|---|---|---|---|")
    large = Trainer(CudaStore(configs(), device="cuda"))
    begun = time.perf_counter()
    longest = fill(large, args.rows)
    seconds = time.perf_counter() - begun
    for line in measure_rows(large, args.rows):
        print(line, flush=True)
    table = large.store.stats().tables["rows"]
    large.store.close()
    small, local = Trainer(CudaStore(configs(), device="cuda")), Trainer(LocalStore(configs()))
    for side in (small, local):
        fill(side, args.local_rows)
    for line in [*measure_steps(small, local, args.local_rows), *measure_changes(small, local, args.local_rows)]:
        print(line, flush=True)
    print(
        f"filling: {args.rows / seconds / 1e6:.1f} M rows/s by the wall, longest call {1e3 * longest:.1f} ms above the"
        f" median; {table['overhead_per_id']:.1f} bytes a row beyond weights and state"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
