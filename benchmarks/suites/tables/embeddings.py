"""`monolith.Embeddings` against torchrec and torch: forward, backward and update of 26 slots; and module overhead.

All slots have the same number of rows; ids follow a bounded zipf 1.05. torchrec and torch get row numbers and do no id
mapping. All contestants start from the same weights, and the row fails if their rows differ after one step.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import statistics
import warnings
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

import monolith as ml
from monolith.cli._bench import ours as tables
from monolith.cli._bench.measurement import Measurement, Sense, median_ratio, spread
from monolith.cli._bench.timing import TimedStep, take_turns
from monolith.cli._bench.workload import SEED, mixed_ids, zipf_ranks
from monolith.nn.embeddings.pooling import PooledBatch
from monolith.tables import BatchStamp, Plan, Update
from monolith.tables.slot_keys import buckets_of_plan

if TYPE_CHECKING:
    from monolith.cli._bench.setting import Setting
    from monolith.nn.slot import IdLayout

FEATURES, DIM = 26, 16
NAMES: Final = [f"slot{number}" for number in range(FEATURES)]
RATE, ACCUMULATOR = 0.01, 0.1
TOLERANCE = 1e-5
OURS, BARE, TORCHREC, TORCH = "Embeddings", "bare calls", "torchrec fused EBC", "torch EmbeddingBag sparse + Adagrad"
RAW, ANY = "id_layout='raw'", "id_layout='any'"
LIMITS: Final = {TORCHREC: 4.0, TORCH: 4.0}
MAX_MODULE_RATIO = 1.1
"""Of the module's time to that of the calls that it makes."""
MAX_HASHED_RATIO = 1.05
MOST_BATCHES = 64
"""Distinct ones; each is held three times here, as rows and as two kinds of ids."""
INSTALL = (
    "torchrec is not installed: pip install --no-deps fbgemm-gpu-cpu==1.8.0 torchrec==1.8.0, then pip install"
    " tensordict torchmetrics==1.0.3 pyre-extensions iopath tqdm (with torch==2.13.0)"
)
TIME = 1_700_000_000


class Batch(NamedTuple):
    """One batch of B examples with one id per slot."""

    rows: torch.Tensor
    """int64 [F, B]: row numbers, for peers that do no id mapping."""
    ids: dict[str, torch.Tensor]
    """Slot -> int64 [B]: the ids of those rows, 64-bit hashes."""
    narrow_ids: dict[str, torch.Tensor]
    """The same rows by 48 bits of these hashes, for slots of ``raw`` ids."""


def ids_of(rows: np.ndarray, *, bits: int = 64) -> torch.Tensor:
    """Well mixed bits for each row number."""
    hashes = mixed_ids(rows)
    return torch.from_numpy(hashes if bits == 64 else hashes & ((1 << bits) - 1))


def make_batches(num_batches: int, examples: int, rows_per_slot: int) -> list[Batch]:
    """Ranks are scattered over the rows of each slot: popular rows do not lie side by side."""
    generator = np.random.default_rng(SEED)
    scattered = [generator.permutation(rows_per_slot) for _ in NAMES]
    batches = []
    for _ in range(num_batches):
        rows = np.stack([order[zipf_ranks(generator, num_rows=rows_per_slot, count=examples)] for order in scattered])
        ids, narrow = ({n: ids_of(own, bits=bits) for n, own in zip(NAMES, rows, strict=True)} for bits in (64, 48))
        batches.append(Batch(torch.from_numpy(rows), ids, narrow))
    return batches


class Ours:
    """The module as a model uses it."""

    def __init__(self, rows_per_slot: int, gradient: torch.Tensor, layout: IdLayout = "int64") -> None:
        optimizer = ml.row_optimizers.Adagrad(learning_rate=RATE, initial_accumulator_value=ACCUMULATOR)
        self.emb = ml.Embeddings({name: ml.Slot(DIM, id_layout=layout) for name in NAMES}, optimizer)
        self._gradient = gradient
        self._is_narrow = layout == "raw"
        everything = ids_of(np.arange(rows_per_slot), bits=48 if self._is_narrow else 64)
        torch.autograd.backward(0.0 * self.emb(dict.fromkeys(NAMES, everything)).concat().sum())
        self.emb.step()  # every id has its row now, as the initializer made it

    def weights(self, rows_per_slot: int) -> torch.Tensor:
        """float32 [F, rows, D] in the order of row numbers."""
        ids = ids_of(np.arange(rows_per_slot))
        return torch.stack([self.emb.lookup(name, ids) for name in NAMES])

    def train(self, batch: Batch) -> None:
        """Forward, backward from the fixed output gradient, update."""
        ids = batch.narrow_ids if self._is_narrow else batch.ids
        torch.autograd.backward(self.emb(ids).concat(), self._gradient)
        self.emb.step()

    def lookup(self, batch: Batch) -> torch.Tensor:
        """float32 [B, F * D]."""
        with torch.no_grad():
            outputs: torch.Tensor = self.emb(batch.ids).concat()
        return outputs


class Bare:
    """The calls that a batch cannot do without, on packed ids: what `Ours` takes beyond them is the module's."""

    def __init__(self, rows_per_slot: int, batches: list[Batch], gradient: torch.Tensor) -> None:
        emb = Ours(rows_per_slot, gradient).emb
        self._store = emb.store
        self._planned = {id(batch): emb.plan(batch.ids) for batch in batches}
        plans = {key: planned.plan for key, planned in self._planned.items()}
        self._keys = {key: plan.unique_ids[plan.inverse] for key, plan in plans.items()}
        self._buckets = {key: _buckets_of(plan) for key, plan in plans.items()}
        self._splits = torch.tensor([0, gradient.shape[0] * FEATURES])
        self._gradient = gradient
        self._rates = torch.tensor([RATE])
        self._joined = self._store.join(0)
        self._seq = self._joined.next_seq - 1

    def train(self, batch: Batch) -> None:
        """Plan, read, pool, sum gradients, apply."""
        joined, planned = self._joined, self._planned[id(batch)]
        self._seq += 1
        keys, buckets = self._keys[id(batch)], self._buckets[id(batch)]
        plan = joined.plan(keys, self._splits, stamp=BatchStamp(worker=0, seq=self._seq), buckets=buckets)
        values = joined.read(plan, after=self._seq - 1, step=self._seq, train=True).result().values
        pooled = PooledBatch(planned.pooled.layout, plan, planned.shape)
        pooled.pool(values)
        gradient = pooled.sum_gradients(self._gradient, [None] * FEATURES, values.device)
        known = gradient.is_finite
        rule = Update(
            previous=self._seq - 1, step=self._seq, learning_rates=self._rates, times=TIME, known_finite=known
        )
        joined.apply([(plan, gradient.values)], rule).result()


def _buckets_of(plan: Plan) -> torch.Tensor:
    """int16 [n]: of each id of the batch."""
    of_unique = torch.from_numpy(buckets_of_plan(plan.splits.numpy(), 1).astype(np.int16))
    return of_unique[plan.inverse]


class TorchBags:
    """An `EmbeddingBag(sparse=True)` for each slot, and torch's sparse Adagrad."""

    def __init__(self, weights: torch.Tensor, gradient: torch.Tensor) -> None:
        checks: Any = torch.sparse.check_sparse_tensor_invariants
        checks.disable()
        self._bags = [
            torch.nn.EmbeddingBag(len(each), DIM, mode="sum", sparse=True, _weight=each.clone()) for each in weights
        ]
        parameters = [bag.weight for bag in self._bags]
        self._optimizer = torch.optim.Adagrad(parameters, lr=RATE, initial_accumulator_value=ACCUMULATOR, eps=1e-10)
        self._gradients = [each.contiguous() for each in gradient.split_with_sizes([DIM] * FEATURES, dim=1)]
        self._offsets = torch.arange(len(gradient))

    def train(self, batch: Batch) -> None:
        """Forward, backward, optimizer step."""
        self._optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(self._forward(batch), self._gradients)
        self._optimizer.step()

    def lookup(self, batch: Batch) -> torch.Tensor:
        """float32 [B, F * D]."""
        with torch.no_grad():
            return torch.cat(self._forward(batch), dim=1)

    def _forward(self, batch: Batch) -> list[torch.Tensor]:
        return [bag(rows, self._offsets) for bag, rows in zip(self._bags, batch.rows, strict=True)]


class TorchRec:
    """torchrec's collection with the optimizer fused into the backward pass, one table per slot."""

    def __init__(self, weights: torch.Tensor, gradient: torch.Tensor) -> None:
        modules: Any = importlib.import_module("torchrec.modules.fused_embedding_modules")
        configs: Any = importlib.import_module("torchrec.modules.embedding_configs")
        self._sparse: Any = importlib.import_module("torchrec.sparse.jagged_tensor")
        tables = [
            configs.EmbeddingBagConfig(
                name=f"t_{name}", embedding_dim=DIM, num_embeddings=len(each), feature_names=[name]
            )
            for name, each in zip(NAMES, weights, strict=True)
        ]
        self._bags = modules.FusedEmbeddingBagCollection(
            tables=tables, optimizer_type=torch.optim.Adagrad, optimizer_kwargs={"lr": RATE, "eps": 1e-10}
        )
        with torch.no_grad():
            for module in self._bags._emb_modules:  # noqa: SLF001 - there is no public way to start from given rows
                for own, each in zip(module.split_embedding_weights(), weights, strict=True):
                    own.copy_(each)
                for (accumulator,) in module._emb_module.split_optimizer_states():  # noqa: SLF001 - likewise
                    accumulator.fill_(ACCUMULATOR)
        self._gradient = gradient
        self._lengths = torch.ones(gradient.shape[0] * FEATURES, dtype=torch.int64)

    def train(self, batch: Batch) -> None:
        """Forward, then backward with the update inside."""
        torch.autograd.backward(self._forward(batch), self._gradient)

    def lookup(self, batch: Batch) -> torch.Tensor:
        """float32 [B, F * D]."""
        with torch.no_grad():
            return self._forward(batch)

    def _forward(self, batch: Batch) -> torch.Tensor:
        features = self._sparse.KeyedJaggedTensor(keys=NAMES, values=batch.rows.view(-1), lengths=self._lengths)
        outputs: torch.Tensor = self._bags(features).values()
        return outputs


def enter(setting: Setting) -> dict[str, TimedStep[Batch]]:
    """Returns all contestants with the same weights, ids and gradient; raises if their rows differ after one step."""
    rows_per_slot = max(setting.small_rows // FEATURES, 1)
    batches = make_batches(min(setting.num_batches, MOST_BATCHES), setting.examples, rows_per_slot)
    gradient = torch.randn(setting.examples, FEATURES * DIM, generator=torch.Generator().manual_seed(SEED))
    ours = Ours(rows_per_slot, gradient)
    weights = ours.weights(rows_per_slot)
    contestants: dict[str, Any] = {OURS: ours, TORCH: TorchBags(weights, gradient)}
    if importlib.util.find_spec("torchrec") is not None:
        logging.disable(logging.WARNING)
        contestants[TORCHREC] = TorchRec(weights, gradient)
    for contestant in contestants.values():
        contestant.train(batches[0])
    expected = contestants[TORCH].lookup(batches[0])
    for name, contestant in contestants.items():
        difference = float((contestant.lookup(batches[0]) - expected).abs().max())
        if not difference <= TOLERANCE:
            raise AssertionError(
                f"{name} and torch differ by {difference} after one step: they do not do the same work"
            )
    contestants[BARE] = Bare(rows_per_slot, batches, gradient)
    contestants[RAW] = Ours(rows_per_slot, gradient, "raw")
    contestants[ANY] = Ours(rows_per_slot, gradient, "any")
    return {name: TimedStep(contestant.train, batches) for name, contestant in contestants.items()}


def measure(setting: Setting) -> list[Measurement]:
    """Measures ratios to peers, to the calls that the module makes, and to ids of fewer bits; on the small table."""
    warnings.simplefilter("ignore")
    tables.use_threads(setting.threads)
    rates = take_turns(enter(setting), rounds=setting.rounds, seconds=setting.seconds)
    times = {name: [1e3 / rate for rate in each] for name, each in rates.items()}
    what = f"26 slots, dim 16, batch {setting.examples:,}, {setting.small_rows:,} rows: forward + backward + update"
    return [
        *(_beside_peer(what, peer, limit, times) for peer, limit in LIMITS.items()),
        _slower(f"{what}, the module", BARE, MAX_MODULE_RATIO, times),
        _slower(f"{what}, 64-bit hashes as ids", RAW, MAX_HASHED_RATIO, times),
        _slower(f"{what}, a table for every slot ({ANY})", RAW, None, times, ours=ANY),
    ]


def _beside_peer(what: str, peer: str, limit: float, times: dict[str, list[float]]) -> Measurement:
    ours = times[OURS]
    return Measurement(
        row="embeddings",
        measure=what,
        figure=statistics.median(ours),
        unit="ms",
        peer=peer,
        peer_figure=statistics.median(times[peer]) if peer in times else None,
        ratio=median_ratio(times[peer], ours) if peer in times else None,
        limit=limit,
        note=f"ours {spread(ours)} ms" if peer in times else INSTALL,
    )


def _slower(
    what: str, peer: str, limit: float | None, times: dict[str, list[float]], *, ours: str = OURS
) -> Measurement:
    """Time of ours over that of the peer, which does less."""
    return Measurement(
        row="embeddings",
        measure=what,
        figure=statistics.median(times[ours]),
        unit="ms",
        peer=peer,
        peer_figure=statistics.median(times[peer]),
        ratio=median_ratio(times[ours], times[peer]),
        limit=limit,
        sense=Sense.AT_MOST,
        note=f"time over time: {spread(times[ours])} ms, {peer} {spread(times[peer])} ms",
    )
