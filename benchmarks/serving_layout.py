"""What a request costs on its way to the pooled rows of a model: the layout engine against `Embeddings` in evaluation.

    python benchmarks/serving_layout.py

DeepFM's shape: 26 slots of 1 + 16 floats, 100 candidates as one ExampleBatch. Processor time of one thread, all ways in
turn in one run, so that the ratios hold on a busy machine. `Embeddings` parse, plan, read and pool; the layout does it
in one call, over the training rows and over serving rows of fp16. A last request has 20 of its 26 columns SHARED.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from monolith import _core
from monolith.data import Ids, Parser
from monolith.data.protos.example_pb2 import ExampleBatch, FeatureListType
from monolith.export.layout_spec import FeatureSpec
from monolith.nn import Embeddings, Slice, Slot
from monolith.nn.slot_address import slot_addresses
from monolith.serving.layout import Layout
from monolith.tables import LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_SLOTS, NUM_SHARED, DIM = 26, 20, 16
NAMES = [f"slot_{number:02}" for number in range(NUM_SLOTS)]
LIMIT, SHARED_LIMIT = 0.4, 0.5


def main() -> None:
    """Prints a table of times and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000, help="of all slots together")
    parser.add_argument("--candidates", type=int, default=100)
    parser.add_argument("--calls", type=int, default=200, help="of each way in each round")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    _core.set_num_threads(1)
    embeddings = filled(options.rows // NUM_SLOTS)
    store = embeddings.store
    if not isinstance(store, LocalStore):
        raise TypeError("the rows are expected in this process")
    ways = ways_of(embeddings, store, options.rows // NUM_SLOTS, options.candidates)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, call in ways.items():
            times[name].append(microseconds(call, options.calls))
    report(times)


def filled(ids_of_a_slot: int) -> Embeddings:
    """A model that has seen so many ids of each slot."""
    embeddings = Embeddings({name: Slot(slices=[Slice.bias(), Slice(DIM)]) for name in NAMES})
    for first in range(0, ids_of_a_slot, 4096):
        ids = torch.arange(first, min(first + 4096, ids_of_a_slot))
        embeddings(dict.fromkeys(NAMES, ids)).concat().sum().backward()
        embeddings.step()
    return embeddings.eval()


def ways_of(
    embeddings: Embeddings, store: LocalStore, ids_of_a_slot: int, candidates: int
) -> dict[str, Callable[[int], object]]:
    """Name -> a call that answers one of several requests."""
    plain = [request(seed, ids_of_a_slot, candidates, 0) for seed in range(16)]
    shared = [request(seed, ids_of_a_slot, candidates, NUM_SHARED) for seed in range(16)]
    parser = Parser("example_batch", [Ids(name) for name in NAMES])
    training = Layout(features_of(embeddings), {"rows": store})
    served = Layout(features_of(embeddings), {"rows": serving(store)})

    def evaluate(number: int) -> object:
        with torch.no_grad():
            return embeddings(parser.parse([plain[number % 16]]))

    return {
        "Embeddings in evaluation": evaluate,
        "layout, training rows": lambda number: training.from_bytes(plain[number % 16], "example_batch"),
        "layout, fp16 serving rows": lambda number: served.from_bytes(plain[number % 16], "example_batch"),
        "layout, fp16, 20 columns SHARED": lambda number: served.from_bytes(shared[number % 16], "example_batch"),
    }


def request(seed: int, ids_of_a_slot: int, candidates: int, num_shared: int) -> bytes:
    """Random ids; the first columns are those of the user, which all candidates have in common."""
    random = np.random.default_rng(seed)
    batch = ExampleBatch(batch_size=candidates)
    for place, name in enumerate(NAMES):
        kind = FeatureListType.SHARED if place < num_shared else FeatureListType.INDIVIDUAL
        column = batch.named_feature_list.add(name=name, type=kind)
        for each in random.integers(0, ids_of_a_slot, 1 if place < num_shared else candidates).tolist():
            column.feature.add().fid_v2_list.value.append(each)
    return batch.SerializeToString()


def features_of(embeddings: Embeddings) -> list[FeatureSpec]:
    """Each slot, summed."""
    return [
        FeatureSpec(
            name=name,
            store="rows",
            table=address.table,
            dims=(1, DIM),
            pooling="sum",
            id_layout=address.id_layout,
            number=address.number,
            wide_index=address.wide_index,
        )
        for name, address in slot_addresses(embeddings, "rows").items()
    ]


def serving(store: LocalStore) -> LocalStore:
    """The rows as serving keeps them."""
    tables = LocalStore({each.name: replace(each, serving=True) for each in store.native.configs})
    with store.cut() as cut:
        tables.load(cut.blocks(state=False), buckets=range(1024), replace=True)
    return tables


def microseconds(call: Callable[[int], object], calls: int) -> float:
    """Processor time of one call."""
    for number in range(16):
        call(number)
    start = time.thread_time()
    for number in range(calls):
        call(number)
    return (time.thread_time() - start) / calls * 1e6


def report(times: dict[str, list[float]]) -> None:
    """Medians, and ratios of the rounds."""
    base, _, served, shared = times.values()
    print(f"{'way':34} {'us a request':>12} {'ratio':>7}")
    for name, own in times.items():
        ratio = statistics.median(each / other for each, other in zip(own, base, strict=True))
        print(f"{name:34} {statistics.median(own):12.0f} {ratio:7.2f}")
    of_served = statistics.median(each / other for each, other in zip(shared, served, strict=True))
    print(f"limit {LIMIT} of Embeddings; SHARED against the same without: {of_served:.2f}, limit {SHARED_LIMIT}")


if __name__ == "__main__":
    main()
