"""Measures tables in the memory of a GPU (`CudaStore`) next to torch's own operations and to `LocalStore`.

    python benchmarks/gpu.py                      # a minute or two on a machine with a CUDA device
    python benchmarks/gpu.py --rows 3000000       # smaller tables

"GPU" lines are the time of all kernels and copies of a call, as torch's profiler reports it; "wall" lines are the time
until the GPU is idle again. The figure is the median of the rounds, in which both sides take turns. torch's side has
the row numbers ready, so it does not search.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import monolith as ml
from monolith.tables import BatchStamp, CudaStore, LocalStore, Segment, Store, TableConfig, Update, WorkerSession
from monolith.tables.initializers import Zeros
from monolith.tables.row_optimizers import Adagrad

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

BATCH, ROUNDS = 1 << 20, 7
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


def configs(dim: int) -> dict[str, TableConfig]:
    """Returns one table of rows of Adagrad."""
    return {"rows": TableConfig([Segment(dim, initializer=Zeros(), optimizer=Adagrad(learning_rate=0.05))])}


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


def fill(trainer: Trainer, rows: int, dim: int) -> float:
    """Inserts rows; returns the seconds of the longest call above the median."""
    gradient, calls = torch.full((BATCH * dim,), 0.01, device=device_of(trainer.store)), []
    for begin in range(0, rows, BATCH):
        plan = trainer.plan(ids_of(torch.arange(begin, begin + BATCH)))
        torch.cuda.synchronize()
        begun = time.perf_counter()
        trainer.step(plan, gradient)
        calls.append(time.perf_counter() - begun)
    return max(calls) - statistics.median(calls)


def device_of(store: Store) -> torch.device:
    """Returns the device of a store's rows."""
    return torch.device(store.traits.device)


def gpu_seconds(call: Callable[[], object]) -> float:
    """Returns the seconds that the GPU was busy with a call."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        call()
        torch.cuda.synchronize()
    return float(sum(event.self_device_time_total for event in profiler.key_averages())) / 1e6


def wall_seconds(call: Callable[[], object]) -> float:
    """Returns the seconds of a call until the GPU is idle."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def compared(
    seconds: Callable[[Callable[[], object]], float], ours: Callable[[], object], peers: Callable[[], object]
) -> tuple[float, float]:
    """Returns the medians of both calls, which take turns; the first round does not count."""
    rounds = [(seconds(ours), seconds(peers)) for _ in range(ROUNDS + 1)][1:]
    return statistics.median(one for one, _ in rounds), statistics.median(other for _, other in rounds)


def measure_rows(trainer: Trainer, rows: int, dim: int) -> list[Line]:
    """Reads, updates and insertions of 1M distinct ids, against torch by row numbers."""
    device = device_of(trainer.store)
    numbers = torch.randperm(rows)[:BATCH]
    on_device = numbers.to(device)
    weights, state = torch.zeros(rows, dim, device=device), torch.full((rows, dim), 0.1, device=device)
    gradient = torch.full((BATCH, dim), 0.01, device=device)
    plan = trainer.plan(ids_of(numbers))
    read = compared(
        gpu_seconds,
        lambda: trainer.store.read(plan, step=0).result(),  # type: ignore[arg-type]
        lambda: weights.index_select(0, on_device),
    )

    def torch_update() -> None:
        weights.index_select(0, on_device)
        state.index_add_(0, on_device, gradient * gradient)
        weights.index_add_(0, on_device, -0.05 * gradient / state.index_select(0, on_device).sqrt())

    updates = []
    for _ in range(ROUNDS + 1):
        own = trainer.plan(ids_of(numbers))

        def update(own: object = own) -> None:
            trainer.session.read(own, after=trainer.seq, step=0, train=True)  # type: ignore[arg-type]
            trainer.step(own, gradient.view(-1))

        updates.append((gpu_seconds(update), gpu_seconds(torch_update)))
    whole = [statistics.median(side) for side in zip(*updates[1:], strict=True)]
    fresh = trainer.plan(ids_of(torch.arange(rows, rows + BATCH)))
    inserted = gpu_seconds(lambda: trainer.step(fresh, gradient.view(-1)))
    at = f"dim {dim}, {rows:,} rows"
    return [
        Line(f"GPU: read of 1M distinct ids, {at}", read[0], BATCH, "index_select, row numbers ready", read[1]),
        Line(f"GPU: read and apply of 1M, {at}", whole[0], BATCH, "index_select and Adagrad by index_add_", whole[1]),
        Line(f"GPU: apply of 1M new ids, {at}", inserted, BATCH, "the update of known rows by torch", whole[1]),
    ]


def zipf_batch(rows: int, examples: int) -> Tensor:
    """Returns the ids of a batch of examples with 26 slots, each with ids of its own, few of them frequent."""
    of_slot = rows // SLOTS
    cumulative = torch.arange(1, of_slot + 1, dtype=torch.float64).pow(-ZIPF).cumsum(0)
    draws = torch.rand(SLOTS, examples, dtype=torch.float64) * cumulative[-1]
    first = torch.arange(SLOTS)[:, None] * of_slot
    return ids_of((first + torch.searchsorted(cumulative, draws)).view(-1))


def measure_steps(trainer: Trainer, local: Trainer, rows: int, examples: int) -> list[Line]:
    """A table step of a batch with frequent ids, against torch's `unique` and against `LocalStore`."""
    ids = zipf_batch(rows, examples)
    on_device = ids.cuda()
    plan = compared(
        gpu_seconds,
        lambda: trainer.plan(on_device),
        lambda: torch.unique(on_device, return_inverse=True, return_counts=True),
    )

    def step(side: Trainer, batch: Tensor) -> None:
        own = side.plan(batch)
        rows_read = side.session.read(own, after=side.seq, step=0, train=True).result()  # type: ignore[arg-type]
        side.step(own, torch.full_like(rows_read.values, 0.01))

    whole = compared(wall_seconds, lambda: step(trainer, on_device), lambda: step(local, ids))
    batch = f"{examples:,} x {SLOTS} ids"
    return [
        Line(f"GPU: plan of {batch}", plan[0], len(ids), "torch.unique with inverse and counts", plan[1]),
        Line(f"wall: plan, read, apply of {batch}", whole[0], len(ids), "LocalStore, all cores", whole[1]),
    ]


def measure_changes(trainer: Trainer, local: Trainer, rows: int, dim: int) -> list[Line]:
    """The cut of all rows, and the changes of a hundredth of them, against `LocalStore`."""
    readers = [side.store.open_reader("log") for side in (trainer, local)]
    gradient = torch.full((rows // 100 * dim,), 0.01)
    for side in (trainer, local):
        side.step(side.plan(ids_of(torch.randperm(rows)[: rows // 100])), gradient.to(device_of(side.store)))
    changed = compared(
        wall_seconds, lambda: readers[0].packed_changes(state=True), lambda: readers[1].packed_changes(state=True)
    )
    for reader in readers:
        reader.close()

    def cut(session: WorkerSession) -> None:
        session.cut().release()

    cuts = compared(wall_seconds, lambda: cut(trainer.session), lambda: cut(local.session))
    at = f"{rows:,} rows"
    return [
        Line(f"wall: changes of 1 % of {at} as blocks", changed[0], rows // 100, "LocalStore", changed[1]),
        Line(f"wall: opening and releasing a cut of {at}", cuts[0], rows, "LocalStore", cuts[1]),
    ]


class DeepFM(nn.Module):
    """A factorisation machine and a tower over 26 slots; the dense part is on the GPU, wherever the rows are."""

    def __init__(self, store: Callable[[Mapping[str, TableConfig]], Store], dim: int = 16) -> None:
        super().__init__()
        slots = {f"slot_{number}": ml.Slot(dim) for number in range(SLOTS)}
        self.rows = ml.Embeddings(slots, Adagrad(learning_rate=0.05), store=store)
        self.deep = nn.Sequential(
            nn.Linear(SLOTS * dim, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1)
        )
        self.cuda()
        self.optimizers = [torch.optim.Adam(self.deep.parameters()), self.rows.optimizer()]

    def step(self, planned: object, clicks: Tensor) -> None:
        """Trains on one batch."""
        vectors = self.rows(planned).stack()
        pairs = (vectors.sum(1).square() - vectors.square().sum(1)).sum(1) / 2
        logits = pairs + self.deep(vectors.flatten(1)).squeeze(1)
        torch.autograd.backward(nn.functional.binary_cross_entropy_with_logits(logits, clicks))
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()


def seconds_of_steps(model: DeepFM, planned: Sequence[object], clicks: Tensor) -> float:
    """Returns the seconds of one of some steps."""

    def steps() -> None:
        for plan in planned:
            model.step(plan, clicks)

    return wall_seconds(steps) / len(planned)


def measure_model(examples: int, rows: int) -> Line:
    """A training step of a model whose plans are made ahead, against the same with rows in main memory."""
    batches = []
    for _ in range(4):
        ids = zipf_batch(rows, examples).view(SLOTS, examples)
        batches.append({f"slot_{number}": ids[number] for number in range(SLOTS)})
    clicks = torch.randint(2, (examples,)).float().cuda()
    sides = [DeepFM(partial(CudaStore, device="cuda")), DeepFM(LocalStore)]
    seconds: list[list[float]] = [[], []]
    for _ in range(ROUNDS + 1):
        for side, of_side in zip(sides, seconds, strict=True):
            of_side.append(seconds_of_steps(side, [side.rows.plan(batch) for batch in batches], clicks))
    ours, peers = (statistics.median(of_side[1:]) for of_side in seconds)
    what = f"wall: DeepFM, {examples:,} x {SLOTS}, plans made ahead"
    return Line(what, ours, examples * SLOTS, "rows in main memory, dense part on the GPU", peers)


def main() -> int:
    """Measures everything and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=30_000_000, help="rows of the tables")
    parser.add_argument("--local-rows", type=int, default=3_000_000, help="rows of the tables that LocalStore has, too")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print(f"gpu.py: torch {torch.__version__} finds no GPU here; run it on a machine with CUDA", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, Adagrad")
    print("| what | time | items | peer | peer's time / ours |\n|---|---|---|---|---|")
    filled = [measure_dim(args.rows, dim) for dim in (16, 64, 128)]
    small, local = Trainer(CudaStore(configs(16), device="cuda")), Trainer(LocalStore(configs(16)))
    for side in (small, local):
        fill(side, args.local_rows, 16)
    lines = [line for examples in (EXAMPLES, 4_096) for line in measure_steps(small, local, args.local_rows, examples)]
    lines += [*measure_changes(small, local, args.local_rows, 16), measure_model(EXAMPLES, args.local_rows)]
    for line in lines:
        print(line, flush=True)
    print(*filled, sep="\n")
    return 0


def measure_dim(rows: int, dim: int) -> str:
    """Prints the lines of one dim; returns one about filling the table."""
    large = Trainer(CudaStore(configs(dim), device="cuda"))
    begun = time.perf_counter()
    longest = fill(large, rows, dim)
    rate = rows / (time.perf_counter() - begun)
    overhead = large.store.stats().tables["rows"]["overhead_per_id"]
    for line in measure_rows(large, rows, dim):
        print(line, flush=True)
    large.store.close()
    return (
        f"filling with {rows:,} rows of dim {dim}: {rate / 1e6:.1f} M rows/s by the wall, longest call"
        f" {1e3 * longest:.1f} ms above the median; {overhead:.1f} bytes a row beyond weights and state"
    )


if __name__ == "__main__":
    sys.exit(main())
