"""From the bytes of a request to pooled rows: the layout engine against `Embeddings` in evaluation; processor time."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import torch

from benchmarks.suites.serving.cpu_turns import take_cpu_turns
from benchmarks.suites.serving.served_deepfm import CANDIDATES, DIM, NAMES, NUM_SHARED, encoded_request, filled_session
from monolith.cli._bench import ours
from monolith.cli._bench.measurement import Measurement, Sense, median_ratio, spread
from monolith.data import Ids, Parser
from monolith.export.layout_spec import FeatureSpec
from monolith.nn.embeddings.slot_address import slot_addresses
from monolith.serving.layout import Layout
from monolith.tables import LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.cli._bench.setting import Setting
    from monolith.nn import Embeddings

LIMIT, SHARED_LIMIT = 0.4, 0.5
_REQUESTS = 16
EVALUATION, TRAINING_ROWS, SERVING_ROWS, SHARED = "Embeddings in evaluation", "training rows", "fp16 rows", "shared"


def measure(setting: Setting) -> list[Measurement]:
    """`Embeddings` parse, plan, read and pool; a layout does it in one call."""
    ours.use_threads(1)
    with filled_session(setting.small_rows) as session:
        (embeddings,) = session.state.embeddings.values()
        times = take_cpu_turns(_contestants(embeddings.eval(), setting.small_rows), setting)
    what = f"bytes of {CANDIDATES} candidates to pooled rows"
    return [
        _against(times, TRAINING_ROWS, EVALUATION, f"{what}, training rows", LIMIT),
        _against(times, SERVING_ROWS, EVALUATION, f"{what}, serving rows of fp16", LIMIT),
        _against(times, SHARED, SERVING_ROWS, f"the same, {NUM_SHARED} of {len(NAMES)} columns SHARED", SHARED_LIMIT),
    ]


def _against(times: dict[str, list[float]], own: str, peer: str, measure: str, limit: float) -> Measurement:
    return Measurement(
        row="serving_layout",
        measure=measure,
        figure=statistics.median(times[own]),
        unit="us",
        peer=peer if peer == EVALUATION else "none of them",
        peer_figure=statistics.median(times[peer]),
        ratio=median_ratio(times[own], times[peer]),
        limit=limit,
        sense=Sense.AT_MOST,
        note=f"processor time; {spread(times[own])}",
    )


def _contestants(embeddings: Embeddings, num_rows: int) -> dict[str, Callable[[int], object]]:
    store = cast("LocalStore", embeddings.store)  # made above, in this process
    plain = [encoded_request(seed, num_rows) for seed in range(_REQUESTS)]
    shared = [encoded_request(seed, num_rows, num_shared=NUM_SHARED) for seed in range(_REQUESTS)]
    parser = Parser("example_batch", [Ids(name) for name in NAMES])
    training = Layout(_features(embeddings), {"rows": store})
    served = Layout(_features(embeddings), {"rows": serving_rows(store)})

    def evaluate(number: int) -> object:
        with torch.no_grad():
            return embeddings(parser.parse([plain[number % _REQUESTS]]))

    return {
        EVALUATION: evaluate,
        TRAINING_ROWS: lambda number: training.from_bytes(plain[number % _REQUESTS], "example_batch"),
        SERVING_ROWS: lambda number: served.from_bytes(plain[number % _REQUESTS], "example_batch"),
        SHARED: lambda number: served.from_bytes(shared[number % _REQUESTS], "example_batch"),
    }


def _features(embeddings: Embeddings) -> list[FeatureSpec]:
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


def serving_rows(store: LocalStore) -> LocalStore:
    """Returns the rows of a training store as serving keeps them."""
    tables = LocalStore({each.name: replace(each, serving=True) for each in store.native.configs})
    with store.cut() as cut:
        tables.load(cut.blocks(state=False), buckets=range(1024), replace=True)
    return tables
