"""A layout over the rows of a model gives what the model's `Embeddings` give in evaluation, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from contracts.device_store import DEVICE, DeviceStore
from monolith.data import Ids, Parser
from monolith.data.protos.example_pb2 import ExampleBatch, FeatureListType
from monolith.export.layout_spec import FeatureSpec
from monolith.nn import Embeddings, Slice, Slot
from monolith.nn.embeddings.slot_address import slot_addresses
from monolith.serving.layout import Layout
from monolith.tables import LocalStore
from monolith.tables.compressors import Fp16, Fp32

SLOTS: dict[str, dict[str, Any]] = {
    "user": {"slices": [Slice.bias(), Slice(16)]},
    "item": {"dim": 8, "id_layout": "raw"},
    "tags": {"dim": 8, "combiner": "mean"},
    "words": {"dim": 8, "combiner": "sqrtn"},
    "page": {"dim": 5, "id_layout": "v2", "number": 9},
    "any": {"dim": 5, "id_layout": "any"},
    "history": {"dim": 8, "combiner": ("first_n", 3), "padding_id": -1},
}


def model(compressor: Any) -> Embeddings:
    slots = {name: Slot(compressor=compressor, **given) for name, given in SLOTS.items()}
    return Embeddings({**slots, "seen": Slot(shares="item", combiner="sum", padding_id=0)})


def features_of(embeddings: Embeddings) -> list[FeatureSpec]:
    features = []
    for name, address in slot_addresses(embeddings, "rows").items():
        slot = embeddings.slots[name]
        combiner = embeddings.placed[name].combiner
        kind = {"ReduceSum": "sum", "ReduceMean": "mean", "ReduceSqrtN": "sqrtn", "FirstN": "firstn"}[
            type(combiner).__name__
        ]
        features.append(
            FeatureSpec(
                name=name,
                store="rows",
                table=address.table,
                dims=(address.dim,),
                pooling=kind,  # type: ignore[arg-type]
                max_sequence_length=combiner.max_seq_length,
                id_layout=address.id_layout,
                number=address.number,
                wide_index=address.wide_index,
                padding_id=slot.padding_id,
            )
        )
    return features


def batch_of(random: np.random.Generator, num_examples: int) -> ExampleBatch:
    batch = ExampleBatch(batch_size=num_examples)
    for name in [*SLOTS, "seen"]:
        is_shared = name in {"user", "history"}
        column = batch.named_feature_list.add(
            name=name, type=FeatureListType.SHARED if is_shared else FeatureListType.INDIVIDUAL
        )
        for _ in range(1 if is_shared else num_examples):
            ids = random.integers(0, 30, random.integers(0, 5) if name in {"tags", "history", "seen"} else 1)
            if name in {"user", "any", "tags"}:
                ids = np.where(ids % 3 == 0, ids * 0x0123_4567_89AB_CDEF, ids)
            if name == "page":
                ids = ids | 9 << 48
            if name == "history":
                ids = np.where(ids % 4 == 0, -1, ids)
            column.feature.add().fid_v2_list.value.extend(ids.view(np.uint64).tolist())
    return batch


def trained(compressor: Any) -> Embeddings:
    embeddings = model(compressor)
    random = np.random.default_rng(1)
    parser = Parser("example_batch", [Ids(name) for name in [*SLOTS, "seen"]])
    for _ in range(3):
        outputs = embeddings(dict(parser.parse([batch_of(random, 20).SerializeToString()]).items()))
        sum((each * torch.randn(each.shape)).sum() for each in outputs.values()).backward()
        embeddings.step()
    return embeddings.eval()


def served(embeddings: Embeddings) -> LocalStore:
    """The rows as serving keeps them."""
    store = embeddings.store
    assert isinstance(store, LocalStore)
    tables = LocalStore({each.name: replace(each, serving=True) for each in store.native.configs})
    with store.cut() as cut:
        tables.load(cut.blocks(state=False), buckets=range(1024), replace=True)
    return tables


@pytest.mark.parametrize(
    ("compressor", "place"), [(Fp32(), "core"), (Fp16(), "core"), *((Fp32(), name) for name in DEVICE)]
)
def test_served_rows_give_the_outputs_of_evaluation(compressor: Any, place: str) -> None:
    torch.manual_seed(0)
    embeddings = trained(compressor)
    assert isinstance(embeddings.store, LocalStore)
    rows = served(embeddings)
    engine = rows if place == "core" else DeviceStore({}, rows=rows)
    layout = Layout(features_of(embeddings), {"rows": engine})
    random = np.random.default_rng(2)
    parser = Parser("example_batch", [Ids(name) for name in [*SLOTS, "seen"]])
    if isinstance(compressor, Fp16):
        with torch.no_grad():
            round_rows(embeddings)
    for _ in range(3):
        data = batch_of(random, 30).SerializeToString()
        expected = embeddings(dict(parser.parse([data]).items()))
        laid_out = layout.from_bytes(data, "example_batch")
        training = Layout(features_of(embeddings), {"rows": embeddings.store}).from_bytes(data, "example_batch")
        assert any(each.wide_slots for each in rows.schema.tables)
        for name, output in expected.items():
            if place != "core":
                torch.testing.assert_close(laid_out.inputs[name], output)
                continue
            assert torch.equal(laid_out.inputs[name].view(torch.int32), output.contiguous().view(torch.int32)), name
            assert torch.equal(training.inputs[name].view(torch.int32), output.contiguous().view(torch.int32)), name
        assert 0 < laid_out.num_found < laid_out.num_ids


def round_rows(embeddings: Embeddings) -> None:
    """What fp16 keeps of every trained weight becomes the weight; biases are float32 in serving."""
    store = embeddings.store
    assert isinstance(store, LocalStore)
    with store.cut() as cut:
        blocks = list(cut.blocks(state=True))
    for block in blocks:
        if block.kind.name != "FULL":
            continue
        config = store.native.configs[block.table]
        weights = torch.from_numpy(block.weights(config.dim).copy())
        at = 0
        for segment in config.segments:
            if isinstance(segment.compressor, Fp16):
                weights[:, at : at + segment.dim] = weights[:, at : at + segment.dim].half().float()
            at += segment.dim
        buckets = np.full(block.count, block.bucket, np.uint16)
        times = block.times.astype(np.int64)
        store.native.core.assign(block.table, block.keys, weights.reshape(-1).numpy(), times, False, 0, buckets)
