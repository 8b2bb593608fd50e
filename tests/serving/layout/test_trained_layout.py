"""Gradients of a layout's outputs reach the rows as each pooling and form says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from contracts.device_store import DEVICE, DeviceStore
from monolith.data.protos.example_pb2 import ExampleBatch, FeatureConfigs, OutType
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.serving.layout import Layout, TrainedLayout
from monolith.tables import LocalStore, Segment, TableConfig, row_optimizers
from monolith.tensors import Ragged
from serving.layout.layout_cases import assign, feature

RATE = 0.5
DIMS = {"t": 3, "u": 2}
IDS = list(range(1, 9))


def store_of(seed: int = 0) -> tuple[LocalStore, dict[str, torch.Tensor]]:
    """Tables that learn by plain steps, and the same rows as torch parameters, row i of id i."""
    store = LocalStore(
        {
            name: TableConfig([Segment(dim, optimizer=row_optimizers.Sgd(learning_rate=RATE))], name=name)
            for name, dim in DIMS.items()
        }
    )
    random, rows = np.random.default_rng(seed), {}
    for table, dim in DIMS.items():
        values = random.standard_normal((len(IDS), dim)).astype(np.float32)
        assign(store, table, IDS, values)
        weights = torch.zeros(len(IDS) + 1, dim)
        weights[1:] = torch.from_numpy(values)
        rows[table] = weights.requires_grad_()
    return store, rows


def learn(values: torch.Tensor) -> None:
    """A backward pass of their sum."""
    values.sum().backward()  # type: ignore[no-untyped-call]


def pooled(rows: torch.Tensor, ids: list[int], spec: Any) -> torch.Tensor:
    """By torch's own operations."""
    taken = rows[torch.tensor(ids, dtype=torch.int64)]
    if spec.pooling == "firstn":
        kept = taken[: spec.max_sequence_length]
        return torch.cat([kept, torch.zeros(spec.max_sequence_length - len(kept), spec.dim)])
    total = taken.sum(0)
    return total / len(ids) if spec.pooling == "mean" and ids else total


FEATURES = [
    feature("sum", "t", (1, 2)),
    feature("mean", "t", (1, 2), pooling="mean"),
    feature("first", "t", (3,), pooling="firstn", max_sequence_length=2),
    feature("shared", "u", (2,)),
    feature("shared_mean", "u", (2,), pooling="mean", column="shared"),
]
LISTS: dict[str, list[list[int]]] = {
    "sum": [[1, 2, 2], [], [3]],
    "mean": [[2, 2, 3, 4], [5], []],
    "first": [[1, 6, 7], [8], []],
    "shared": [[1, 2, 1]],
}


def configs() -> FeatureConfigs:
    """Every form, with slices that overlap."""
    made = FeatureConfigs()
    for name, out_type, slices in (
        ("concat", OutType.CONCAT, [("sum", 0, 3), ("mean", 1, 3), ("shared", 0, 1)]),
        ("stack", OutType.STACK, [("sum", 0, 2), ("shared_mean", 0, 2)]),
        ("addn", OutType.ADDN, [("mean", 0, 2), ("sum", 1, 3), ("shared", 0, 2)]),
        ("none", OutType.NONE, [("first", 1, 3), ("mean", 0, 1)]),
        ("sequences", OutType.STACK, [("first", 0, 1), ("first", 2, 3)]),
    ):
        out = made.out_configs[name]
        out.out_type = out_type
        for part, start, end in slices:
            out.slice_configs.add(feature_name=part, start=start, end=end)
    return made


def lists_of(column: str) -> list[list[int]]:
    """For each of three examples."""
    return LISTS[column] * (3 // len(LISTS[column]))


def expected_outputs(rows: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    of_features = {
        spec.name: torch.stack(
            [
                pooled(rows[spec.table], ids, spec)
                for ids in (LISTS[spec.source] * (3 if len(LISTS[spec.source]) == 1 else 1))
            ]
        )
        for spec in FEATURES
    }
    cut = {
        name: [of_features[part.feature_name][..., part.start : part.end] for part in config.slice_configs]
        for name, config in configs().out_configs.items()
    }
    return {
        "concat": torch.cat(cut["concat"], -1),
        "stack": torch.stack(cut["stack"], 1),
        "addn": sum(cut["addn"][1:], cut["addn"][0]),
        "none/0": cut["none"][0],
        "none/1": cut["none"][1],
        "sequences": torch.stack(cut["sequences"], 1),
    }


@pytest.mark.parametrize("place", ["core", *DEVICE])
def test_rows_learn_what_torch_computes_for_every_pooling_and_form(place: str) -> None:
    store, rows = store_of()
    engine = store if place == "core" else DeviceStore({}, rows=store)
    trained = TrainedLayout(Layout(FEATURES, {"rows": engine}, outputs=configs()))
    inputs = trained.from_columns({name: Ragged.from_lists(lists) for name, lists in LISTS.items()}).inputs
    expected = expected_outputs(rows)
    assert set(inputs) == set(expected)
    random = torch.Generator().manual_seed(1)
    weights = {name: torch.randn(each.shape, generator=random) for name, each in expected.items()}
    for name, value in expected.items():
        torch.testing.assert_close(inputs[name], value)
    learn(torch.stack([(inputs[name] * each).sum() for name, each in weights.items()]))
    learn(torch.stack([(expected[name] * each).sum() for name, each in weights.items()]))
    assert trained.step()["rows"].updated > 0
    for table, each in rows.items():
        assert each.grad is not None
        learned = store.native.core
        values = np.zeros(len(IDS) * DIMS[table], np.float32)
        splits = store.native.splits_for(store.native.number_of(table), len(IDS))
        learned.lookup(np.array(IDS, np.int64), splits, values, 0)
        wanted = (each.detach() - RATE * each.grad)[1:]
        torch.testing.assert_close(torch.from_numpy(values).view(len(IDS), -1), wanted)


def test_a_store_without_learning_rates_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore({"t": TableConfig([Segment(3)])})
    owner = next(kind for kind in LocalStore.__mro__ if "learning_rates_at" in vars(kind))
    monkeypatch.delattr(owner, "learning_rates_at")
    with pytest.raises(InvalidArgumentError, match="store 'rows': LocalStore has no learning_rates_at"):
        TrainedLayout(Layout([feature("f", "t", (3,))], {"rows": store}))


def test_ids_after_a_sequence_get_no_gradient_and_are_not_inserted() -> None:
    store, _ = store_of()
    layout = Layout([FEATURES[2]], {"rows": store})
    trained = TrainedLayout(layout)
    inputs = trained.from_columns({"first": torch.tensor([[100, 101, 102]])}).inputs
    learn(inputs["first"])
    assert trained.step()["rows"].inserted == 2


def test_several_passes_make_one_step_and_a_step_needs_one() -> None:
    store, _ = store_of()
    trained = TrainedLayout(Layout([FEATURES[0]], {"rows": store}))
    with pytest.raises(FailedPreconditionError, match="no backward pass"):
        trained.step()
    before = trained.from_columns({"sum": [1]}).inputs["sum"].detach().clone()
    for _ in range(2):
        learn(trained.from_columns({"sum": [1]}).inputs["sum"])
    trained.step()
    learn(trained.from_columns({"sum": [1, 1]}).inputs["sum"])
    trained.step()
    after = trained.from_columns({"sum": [1]}).inputs["sum"].detach()
    torch.testing.assert_close(after, before - RATE * 4)


def test_the_same_batch_teaches_the_same_bits() -> None:
    results = []
    for _ in range(2):
        store, _ = store_of()
        trained = TrainedLayout(Layout(FEATURES, {"rows": store}))
        laid_out = trained.from_columns({name: Ragged.from_lists(lists) for name, lists in LISTS.items()})
        learn(torch.stack([each.square().sum() for each in laid_out.inputs.values()]))
        trained.step()
        again = trained.layout.from_columns({name: Ragged.from_lists(lists) for name, lists in LISTS.items()})
        results.append(torch.cat([each.reshape(-1) for each in again.inputs.values()]))
    assert torch.equal(results[0].view(torch.int32), results[1].view(torch.int32))


def test_samples_teach_their_rows() -> None:
    store, rows = store_of()
    trained = TrainedLayout(Layout([FEATURES[0]], {"rows": store}))
    batch = ExampleBatch(batch_size=3)
    batch.named_feature_list.add(name="sum", type=1).feature.add().fid_v2_list.value.append(1)
    learn(trained.from_bytes(batch.SerializeToString(), "example_batch").inputs["sum"])
    trained.step()
    after = trained.layout.from_columns({"sum": [1]}).inputs["sum"]
    torch.testing.assert_close(after[0], rows["t"][1].detach() - RATE * 3)
