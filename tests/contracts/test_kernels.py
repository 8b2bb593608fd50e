"""Every optimizer with every compressor, initializer and filter, against a dictionary with independent arithmetic.

Classes are found by introspection: a new one is tested here without being listed, once it has a reference rule.
"""

from __future__ import annotations

import inspect
from abc import ABC
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from monolith.tables import (
    HashTable,
    LocalStore,
    Segment,
    TableConfig,
    TableGroup,
    compressors,
    filters,
    initializers,
    row_optimizers,
)
from tables.optimizer_reference import Reference, make_reference, reference_class

Floats = NDArray[np.float32]

MIN_COUNT = 2
DAY = 86400
EXAMPLES: dict[type, Any] = {
    initializers.Constant: initializers.Constant(0.5),
    initializers.BatchSoftmaxInit: initializers.BatchSoftmaxInit(3.0),
    filters.SlidingHashFilter: filters.SlidingHashFilter(capacity=100_000),
    row_optimizers.DelayCompensated: row_optimizers.DelayCompensated(row_optimizers.Adam(), 0.1),
}
"""Instances of classes that cannot be made without arguments, or not usefully."""


def examples_of(module: ModuleType) -> list[Any]:
    """One instance of every public concrete config class of a module."""
    classes = [getattr(module, name) for name in module.__all__]
    concrete = [
        cls for cls in classes if inspect.isclass(cls) and not inspect.isabstract(cls) and ABC not in cls.__bases__
    ]
    return [EXAMPLES.get(cls) or cls() for cls in concrete]


def label(example: Any) -> str:
    return type(example).__name__


@dataclass
class ModelRow:
    """One id as the reference sees it: a rule and weights for each segment."""

    weights: list[Floats]
    rules: list[Reference]
    time: int


@dataclass
class Model:
    """A dictionary beside a table."""

    table: HashTable
    rows: dict[int, ModelRow] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.segments = self.table.config.segments
        self.fresh = HashTable(self.table.config)  # asked for the initial weights of an id

    def new_row(self, key: int) -> ModelRow:
        self.fresh.reinitialize([key])
        initial = self.fresh.lookup_rows(np.array([key])).weights[0]
        rules = [make_reference(segment.optimizer, np.float32) for segment in self.segments]
        for segment, rule in zip(self.segments, rules, strict=True):
            rule.init(segment.dim)
        return ModelRow(self.split(initial), rules, 0)

    def split(self, values: Floats) -> list[Floats]:
        ends = np.cumsum([segment.dim for segment in self.segments])
        return [part.copy() for part in np.split(values, ends[:-1])]

    def is_admitted(self, key: int, count: int) -> bool:
        admission = self.table.config.admission
        if isinstance(admission, filters.SlidingHashFilter):
            seen = self.counts.get(key, 0)
            self.counts[key] = seen + count
            return seen >= MIN_COUNT
        if isinstance(admission, filters.ProbabilisticFilter):
            return key in self.table  # the draw is the core's; what follows from it is not
        return True

    def apply(self, ids: list[int], grads: Floats, step: int, time: int) -> None:
        sums: dict[int, Floats] = {}
        for key, grad in zip(ids, grads, strict=True):
            sums[key] = sums[key] + grad if key in sums else grad
        for key, total in sums.items():
            row = self.rows.get(key)
            if row is None:
                if not self.is_admitted(key, ids.count(key)):
                    continue
                row = self.rows[key] = self.new_row(key)
            row.time = time
            for number, (segment, grad) in enumerate(zip(self.segments, self.split(total), strict=True)):
                weights = row.weights[number]
                rate = np.float32(segment.optimizer.learning_rate_at(step))
                slope = straight_through(segment.compressor, weights, grad, step)
                row.weights[number] = row.rules[number].update(weights, slope, rate, step).astype(np.float32)

    def assign(self, ids: list[int], values: Floats, time: int, *, add: bool) -> None:
        for key, given in zip(ids, values, strict=True):
            row = self.rows.get(key)
            if row is None:
                if not self.is_admitted(key, 1):
                    continue
                row = self.rows[key] = self.new_row(key)
            row.weights = self.split(np.concatenate(row.weights) + given if add else given)
            row.time = time

    def check(self, step: int, *, exact: bool) -> None:
        ids = np.array(sorted(self.rows), np.int64)
        assert sorted(self.table.ids().tolist()) == ids.tolist()
        found = self.table.lookup_rows(ids)
        for place, key in enumerate(ids.tolist()):
            row = self.rows[key]
            state = b"".join(rule.state_bytes() for rule in row.rules)
            assert found.time[place] == row.time
            if exact:
                assert np.array_equal(found.weights[place], np.concatenate(row.weights), equal_nan=True)
                assert found.state[place].tobytes() == state
            else:
                np.testing.assert_allclose(found.weights[place], np.concatenate(row.weights), rtol=2e-4, atol=1e-6)
        self.check_reading(ids, found.weights, step)

    def check_reading(self, ids: NDArray[np.int64], weights: Floats, step: int) -> None:
        seen = self.table.lookup(ids, step=step)
        at = 0
        for segment in self.segments:
            part = slice(at, at + segment.dim)
            expected = as_training_sees(segment.compressor, weights[:, part], step)
            np.testing.assert_allclose(seen[:, part], expected, rtol=1e-6, atol=1e-7)
            at += segment.dim


def scale_at(compressor: compressors.OneBit, step: int) -> float:
    newest = step - step % compressor.step_size
    return min(compressor.max_scale, compressor.init_scale * float(np.sqrt(1 + 0.005 * newest)))


def as_training_sees(compressor: compressors.Compressor, weights: Floats, step: int) -> NDArray[np.float64]:
    exact = weights.astype(np.float64)
    if isinstance(compressor, compressors.FixedR8):
        return fixed_r8(compressor, exact)
    if isinstance(compressor, compressors.OneBit):
        return compressor.amplitude * np.tanh(scale_at(compressor, step) * exact)
    return exact


def straight_through(compressor: compressors.Compressor, weights: Floats, grad: Floats, step: int) -> Floats:
    if not isinstance(compressor, compressors.OneBit):
        return grad
    scale = scale_at(compressor, step)
    slope = compressor.amplitude * scale * (1 - np.tanh(scale * weights.astype(np.float64)) ** 2)
    return (grad * slope).astype(np.float32)


def fixed_r8(compressor: compressors.FixedR8, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    step = compressor.r / 128
    away_from_zero = np.trunc(weights / step + np.copysign(0.5, weights))
    return np.clip(away_from_zero, -128, 127) * step


def bfloat16(weights: Floats) -> Floats:
    bits = weights.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


def as_served(compressor: compressors.Compressor, weights: Floats) -> NDArray[np.float64]:
    if isinstance(compressor, compressors.Fp16):
        return weights.astype(np.float16).astype(np.float64)
    if isinstance(compressor, compressors.Bf16):
        return bfloat16(weights).astype(np.float64)
    if isinstance(compressor, compressors.FixedR8):
        return fixed_r8(compressor, weights.astype(np.float64))
    if isinstance(compressor, compressors.OneBit):
        return np.where(weights > 0, compressor.amplitude, -compressor.amplitude)
    return weights.astype(np.float64)


def config_of(optimizer: Any, compressor: Any, initializer: Any, admission: Any) -> TableConfig:
    dim = 1 if isinstance(optimizer, row_optimizers.BatchSoftmax) else 5
    return TableConfig(
        [
            Segment(dim, initializer=initializer, optimizer=optimizer, compressor=compressor),
            Segment(2, optimizer=row_optimizers.Sgd(learning_rate=0.1)),
        ],
        name="contract",
        expire_days=1,
        evict_every_seconds=0,  # the dictionary removes rows when it is told
        min_count=MIN_COUNT,
        admission=admission,
    )


def run_random_operations(model: Model, rng: np.random.Generator, *, exact: bool) -> None:
    table, pool = model.table, [-(2**63), -5, 0, 1, 2, 3, 1 << 50, 2**63 - 1]
    for step in range(12):
        ids = rng.choice(pool, rng.integers(0, 9)).tolist()
        values = rng.standard_normal((len(ids), table.dim)).astype(np.float32)
        array, time = np.array(ids, np.int64), step * DAY // 4
        match rng.integers(0, 8):
            case 0:
                table.assign(array, values, time=time)
                model.assign(ids, values, time, add=False)
            case 1:
                table.assign_add(array, values, time=time)
                model.assign(ids, values, time, add=True)
            case 2:
                table.erase(array)
                model.rows = {key: row for key, row in model.rows.items() if key not in ids}
                model.counts = {key: count for key, count in model.counts.items() if key not in ids}
            case 3:
                table.evict(time)
                model.rows = {key: row for key, row in model.rows.items() if time - row.time < DAY}
            case _:
                table.apply_gradients(array, values, step=step, time=time)
                model.apply(ids, values, step, time)
    model.check(step, exact=exact)


def is_exact(optimizer: Any, compressor: Any) -> bool:
    return reference_class(type(optimizer)).is_exact and not isinstance(compressor, compressors.OneBit)


OPTIMIZERS = examples_of(row_optimizers)
COMPRESSORS = examples_of(compressors)
INITIALIZERS = examples_of(initializers)
FILTERS = examples_of(filters)


def test_every_public_class_is_found() -> None:
    assert len(OPTIMIZERS) == len(row_optimizers.every_rule()) + 1  # and the wrapper
    assert len(COMPRESSORS) == 5
    assert len(INITIALIZERS) == 8
    assert len(FILTERS) == 3


@pytest.mark.parametrize(
    ("optimizer", "compressor"),
    [
        pytest.param(
            optimizer,
            compressor,
            id=f"{label(optimizer)}-{label(compressor)}",
            marks=[] if COMPRESSORS[0] is compressor or OPTIMIZERS[0] is optimizer else pytest.mark.slow,
        )
        for optimizer in OPTIMIZERS
        for compressor in COMPRESSORS
    ],
)
def test_random_operations_give_the_rows_of_a_dictionary(optimizer: Any, compressor: Any) -> None:
    for seed, initializer in enumerate(INITIALIZERS):
        for admission in FILTERS:
            model = Model(HashTable(config_of(optimizer, compressor, initializer, admission)))
            run_random_operations(model, np.random.default_rng(seed), exact=is_exact(optimizer, compressor))


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=label)
def test_serving_rows_are_the_compressed_training_rows(compressor: Any) -> None:
    segments = [Segment(4, initializer=initializers.RandomUniform(-2.0, 2.0), compressor=compressor)]
    training = LocalStore({"user": TableConfig(segments)})
    serving = LocalStore({"user": TableConfig(segments, serving=True)})
    ids = np.arange(-20, 20)
    trained = TableGroup.of_store(training)["user"]
    trained.apply_gradients(ids, np.zeros((40, 4), np.float32), time=7)
    with training.cut() as cut:
        serving.load(cut.blocks(state=False), buckets=range(1024), replace=True)
    weights = trained.lookup_rows(ids).weights
    served = TableGroup.of_store(serving)["user"].lookup_rows(ids)
    np.testing.assert_allclose(served.weights, as_served(compressor, weights), rtol=1e-6, atol=1e-7)
    assert served.found.all()
    assert (served.time == 7).all()
    assert served.state.shape == (40, 0)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=label)
def test_rows_go_through_blocks_unchanged(optimizer: Any) -> None:
    config = config_of(optimizer, compressors.Fp32(), initializers.RandomUniform(), None)
    source, target = LocalStore({"user": config}), LocalStore({"user": config})
    ids = np.arange(50)
    grads = np.random.default_rng(1).standard_normal((50, config.dim)).astype(np.float32)
    tables = [TableGroup.of_store(store)["user"] for store in (source, target)]
    for step in range(3):
        tables[0].apply_gradients(ids, grads, step=step, time=step)
    with source.cut() as cut:
        target.load(cut.blocks(), buckets=range(1024), replace=False)
    for step in range(3, 5):
        for table in tables:
            table.apply_gradients(ids, grads, step=step, time=step)
    before, after = (table.lookup_rows(ids) for table in tables)
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(before, after, strict=True))
