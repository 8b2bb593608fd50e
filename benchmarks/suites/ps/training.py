"""Complete training steps of a DeepFM with its rows on a server, against a store in its own process."""

from __future__ import annotations

import itertools
import statistics
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from benchmarks.suites.processes import on_cores
from benchmarks.suites.ps.servers import running_servers
from monolith.cli._bench import ours
from monolith.cli._bench.measurement import Measurement, median_ratio, spread
from monolith.cli._bench.timing import TimedStep, take_turns
from monolith.cli._bench.workload import SEED, mixed_ids, zipf_ranks
from monolith.nn import Embeddings, Slice, Slot
from monolith.nn.table_defaults import TableDefaults, use_table_defaults
from monolith.tables import LocalStore
from monolith.tables.initializers import Zeros
from monolith.tables.row_optimizers import Adagrad
from monolith.train import PipelineConfig, Session, Spec, Task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monolith.cli._bench.setting import Setting
    from monolith.nn.table_defaults import StoreFactory

CORES = 2
LIMIT = 0.8
HERE = "LocalStore"
PIPELINE = PipelineConfig(prefetch=1, postpush=True)

Batches = list[dict[str, torch.Tensor]]


class DeepFm(Task):
    """First order, second order and a network over the same rows: the model of `examples/deepfm.py`, over 26 slots."""

    slots: list[str]

    def build(self) -> None:
        """Rows of a bias and a vector."""
        row = [Slice(1, initializer=Zeros()), Slice(ours.DIM)]
        adagrad = Adagrad(learning_rate=0.1, initial_accumulator_value=1e-8)
        self.emb = Embeddings({name: Slot(slices=row) for name in self.slots}, adagrad)
        self.deep = nn.Sequential(nn.Linear(len(self.slots) * ours.DIM, 32), nn.ReLU(), nn.Linear(32, 1))

    def model_fn(self, features: Any, mode: str) -> Spec:  # noqa: ARG002 - trained only
        """Log loss of the clicks."""
        rows = self.emb(features).stack()
        bias, vectors = rows[..., 0], rows[..., 1:]
        pairs = (vectors.sum(1).square() - vectors.square().sum(1)).sum(1) / 2
        logits = bias.sum(1) + pairs + self.deep(vectors.flatten(1)).squeeze(1)
        return Spec(nn.functional.binary_cross_entropy_with_logits(logits, features["label"]))

    def optimizers(self, model: nn.Module) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(model.parameters(), lr=1e-3)


def measure(setting: Setting) -> list[Measurement]:
    """Steps of two sessions, both with one batch read ahead and postponed pushes, on two cores."""
    ours.use_threads(CORES)
    slots = [f"slot_{number}" for number in range(setting.features)]
    batches = training_batches(setting, slots)
    with ExitStack() as running:
        running.enter_context(on_cores(CORES))
        servers = running.enter_context(running_servers(1, threads=CORES))
        factories: dict[str, StoreFactory] = {
            "server": lambda configs: running.enter_context(servers.open_store(configs)),
            HERE: LocalStore,
        }
        contestants = {}
        for name, factory in factories.items():
            task = DeepFm()
            task.slots = slots
            with use_table_defaults(TableDefaults(store=factory)):
                session = running.enter_context(Session(task, pipeline=PIPELINE))
            feed = running.enter_context(session.feed(itertools.cycle(batches)))
            step = partial(_step, session, feed)
            for _ in range(len(batches)):  # every id gets its row
                step(None)
            contestants[name] = TimedStep(step, [None])
        rates = take_turns(contestants, rounds=setting.rounds, seconds=setting.seconds)
    remote, local = rates["server"], rates[HERE]
    return [
        Measurement(
            row="ps_training",
            measure=f"training steps of a DeepFM, a worker and a server on {CORES} cores",
            figure=statistics.median(remote),
            unit="steps/s",
            peer=f"{HERE} there",
            peer_figure=statistics.median(local),
            ratio=median_ratio(remote, local),
            limit=LIMIT,
            note=f"server {spread(remote)}, here {spread(local)}; dense weights stay with the worker",
        )
    ]


def _step(session: Session, feed: Any, _: None) -> None:
    session.run_next(feed)


def training_batches(setting: Setting, slots: list[str]) -> Batches:
    """Returns batches in which each slot has its own share of the rows."""
    generator = np.random.default_rng(SEED)
    num_rows = max(1, setting.small_rows // len(slots))
    return [dict(_columns(setting, slots, num_rows, generator)) for _ in range(setting.num_batches)]


def _columns(
    setting: Setting, slots: list[str], num_rows: int, generator: np.random.Generator
) -> Iterator[tuple[str, torch.Tensor]]:
    for number, name in enumerate(slots):
        ranks = zipf_ranks(generator, num_rows=num_rows, count=setting.examples)
        yield name, torch.from_numpy(mixed_ids(number * num_rows + ranks))
    yield "label", torch.from_numpy(generator.integers(0, 2, setting.examples).astype(np.float32))
