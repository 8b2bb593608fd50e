"""Every row optimizer, through a real table, against the independent rules of `optimizer_reference.py`."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from monolith import _core
from monolith.tables import HashTable, Segment, TableConfig, initializers
from monolith.tables import row_optimizers as ro
from tables.optimizer_reference import DelayCompensated, Real, Reference, make_reference, reference_class

Floats = NDArray[np.float32]

VARIANTS: list[ro.RowOptimizer] = [
    *(rule() for rule in ro.every_rule()),
    ro.Adagrad(weight_decay_factor=0.01, initial_accumulator_value=1.0),
    ro.Adagrad(hessian_compression_times=4, weight_decay_factor=0.02),
    ro.Adagrad(hessian_compression_times=1000),
    ro.DynamicWdAdagrad(weight_decay_factor=0.05, hessian_compression_times=3),
    ro.DynamicWdAdagrad(weight_decay_factor=0.05, decouple_weight_decay=True),
    ro.DynamicWdAdagrad(weight_decay_factor=0.05, enable_dynamic_wd=True, dynamic_wd_temperature=5.0),
    ro.DynamicWdAdagrad(
        weight_decay_factor=0.05, decouple_weight_decay=True, enable_dynamic_wd=True, flip_direction=True
    ),
    ro.Adadelta(weight_decay_factor=0.01, averaging_ratio=0.5, epsilon=1e-6),
    ro.Adam(beta1=0.5, beta2=0.9, weight_decay_factor=0.01, use_nesterov=True, epsilon=1e-4),
    ro.Adam(beta1=0.0, beta2=0.0),
    ro.AmsGrad(weight_decay_factor=0.01, use_nesterov=True),
    ro.Ftrl(beta=1.0, l1_regularization_strength=0.5, l2_regularization_strength=0.1),
    ro.GroupFtrl(l1_regularization_strength=1.0, l2_regularization_strength=0.1, initial_accumulator_value=0.1),
    ro.GroupAdagrad(beta=0.5, l2_regularization_strength=0.5, weight_decay_factor=0.01),
    ro.Momentum(weight_decay_factor=0.01, use_nesterov=True, momentum=0.5),
    ro.MovingAverage(momentum=0.25),
    ro.RmsProp(weight_decay_factor=0.01, momentum=0.5),
    ro.RmsPropV2(weight_decay_factor=0.01, momentum=0.5),
    ro.DelayCompensated(ro.Sgd(), 0.5),
    ro.DelayCompensated(ro.Adam(use_nesterov=True), 0.1),
]
"""Every rule as it is, and with options that take other ways through it."""
DIMS = [1, 2, 3, 4, 7, 8, 15, 16, 17, 32, 33]
"""Around every vector width: whole vectors, and tails of each length."""


def table_of(optimizer: ro.RowOptimizer, dim: int, **options: Any) -> HashTable:
    return HashTable(TableConfig(segments=[Segment(dim=dim, optimizer=optimizer)], **options))


def label(optimizer: ro.RowOptimizer) -> str:
    changed = [f.name for f in dataclasses.fields(optimizer) if getattr(optimizer, f.name) != f.default]
    return "-".join([type(optimizer).__name__, *changed])


class Rows:
    """The same rows twice: in a table and as references."""

    def __init__(self, optimizer: ro.RowOptimizer, dim: int, real: Real, num_ids: int = 5) -> None:
        rng = np.random.default_rng(dim)
        self.table = table_of(optimizer, dim)
        self.ids = rng.integers(-(2**63), 2**63 - 1, num_ids)
        start = rng.normal(0, 0.5, (num_ids, dim)).astype(np.float32)
        self.table.assign(self.ids, start, time=1)
        self.real = real
        self.weights: Any = start.astype(real)
        self.references: list[Reference] = [make_reference(optimizer, real) for _ in range(num_ids)]
        for reference in self.references:
            reference.init(dim)

    def update(self, chosen: Any, gradients: Floats, lr: np.float32, step: int, latest: Floats | None) -> None:
        self.table.apply_gradients(
            self.ids[chosen], gradients, step=step, time=step + 2, learning_rates=[float(lr)], latest=latest
        )
        for position, number in enumerate(chosen):
            reference = self.references[number]
            if isinstance(reference, DelayCompensated):
                reference.latest = None if latest is None else latest[position].astype(self.real)
            gradient = gradients[position].astype(self.real)
            self.weights[number] = reference.update(self.weights[number], gradient, self.real(lr), step)

    def run_random_updates(self, rounds: int) -> None:
        rng = np.random.default_rng(99)
        dim = self.weights.shape[1]
        step = 0
        for _ in range(rounds):
            step += int(rng.integers(0, 4))
            chosen = rng.permutation(len(self.ids))[: rng.integers(1, len(self.ids) + 1)]
            gradients = rng.normal(0, 1, (len(chosen), dim)).astype(np.float32)
            gradients[rng.random(gradients.shape) < 0.1] = 0
            lr = np.float32(rng.choice([0.05, 0.01, 0.1, 0.0], p=[0.5, 0.3, 0.15, 0.05]))
            latest = rng.normal(0, 0.5, gradients.shape).astype(np.float32) if rng.random() < 0.5 else None
            self.update(chosen, gradients, lr, step, latest)


@pytest.mark.parametrize("optimizer", VARIANTS, ids=label)
def test_hundreds_of_updates_agree_with_the_rule_in_float64(optimizer: ro.RowOptimizer) -> None:
    for dim in [1] if isinstance(optimizer, ro.BatchSoftmax) else [1, 5, 16, 33]:
        rows = Rows(optimizer, dim, np.float64)
        rows.run_random_updates(300 if dim == 5 else 40)
        np.testing.assert_allclose(rows.table.lookup(rows.ids), rows.weights, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("optimizer", [v for v in VARIANTS if reference_class(type(v)).is_exact], ids=label)
def test_updates_agree_with_the_rule_in_float32_bit_for_bit(optimizer: ro.RowOptimizer) -> None:
    for dim in [1] if isinstance(optimizer, ro.BatchSoftmax) else DIMS:
        rows = Rows(optimizer, dim, np.float32)
        rows.run_random_updates(50)
        found = rows.table.lookup_rows(rows.ids)
        np.testing.assert_array_equal(found.weights, rows.weights)
        for number, reference in enumerate(rows.references):
            assert found.state[number].tobytes() == reference.state_bytes()


@pytest.mark.parametrize("optimizer", VARIANTS, ids=label)
def test_a_new_row_has_the_initial_state_of_the_rule(optimizer: ro.RowOptimizer) -> None:
    dim = 1 if isinstance(optimizer, ro.BatchSoftmax) else 5
    rows = Rows(optimizer, dim, np.float32, num_ids=1)
    assert rows.table.lookup_rows(rows.ids).state[0].tobytes() == rows.references[0].state_bytes()


@pytest.mark.parametrize("optimizer", [v for v in VARIANTS if not isinstance(v, ro.MovingAverage)], ids=label)
def test_learning_rate_zero_leaves_the_weights_of_a_new_row(optimizer: ro.RowOptimizer) -> None:
    dim = 1 if isinstance(optimizer, ro.BatchSoftmax) else 3
    table = table_of(optimizer, dim)
    weights = np.array([[0.0, 0.5, -0.5]], np.float32)[:, :dim]
    table.assign([7], weights, time=1)
    table.apply_gradients([7], np.ones((1, dim), np.float32), learning_rates=[0.0], time=1)
    np.testing.assert_array_equal(table.lookup(np.array([7])), weights)
    table.apply_gradients([7], np.ones((1, dim), np.float32), learning_rates=[0.1], step=3, time=1)
    after = table.lookup(np.array([7]))
    assert np.isfinite(after).all()
    assert (after != weights).all()


@pytest.mark.parametrize("optimizer", [v for v in VARIANTS if not isinstance(v, ro.BatchSoftmax)], ids=label)
def test_zero_gradients_on_a_zero_row_keep_it_zero(optimizer: ro.RowOptimizer) -> None:
    if any(field.name == "initial_accumulator_value" for field in dataclasses.fields(optimizer)):
        optimizer = dataclasses.replace(optimizer, initial_accumulator_value=0.0)  # type: ignore[call-arg]
    table = table_of(optimizer, 3)
    for step in range(3):
        table.apply_gradients([7], np.zeros((1, 3), np.float32), learning_rates=[0.1], step=step, time=1)
    np.testing.assert_array_equal(table.lookup(np.array([7])), np.zeros((1, 3), np.float32))


@pytest.mark.parametrize("size", [1e-45, 1e-38, 1e-20, 1e-6, 1e6, 1e15])
@pytest.mark.parametrize("optimizer", VARIANTS, ids=label)
def test_extreme_gradients_give_no_nan(optimizer: ro.RowOptimizer, size: float) -> None:
    dim = 1 if isinstance(optimizer, ro.BatchSoftmax) else 3
    table = table_of(optimizer, dim)
    gradient = (np.array([[1.0, -1.0, 0.0]]) * size).astype(np.float32)[:, :dim]
    for step in range(5):
        table.apply_gradients([7], gradient, learning_rates=[0.1], step=step, time=1)
    assert np.isfinite(table.lookup(np.array([7]))).all()


@pytest.mark.parametrize("kind", [ro.Adagrad, ro.DynamicWdAdagrad, ro.Ftrl, ro.GroupFtrl, ro.GroupAdagrad])
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-10, 1.0])
def test_an_accumulator_may_start_at_zero(kind: Any, size: float) -> None:
    table = table_of(kind(initial_accumulator_value=0.0), 2)
    table.apply_gradients([7], np.array([[size, -size]], np.float32), learning_rates=[0.1], time=1)
    weights = table.lookup(np.array([7]))
    assert np.isfinite(weights).all()
    assert (np.abs(weights) <= 0.1000001).all()


@pytest.mark.parametrize(
    ("optimizer", "weight"),
    [
        (ro.Sgd(), 0.0),
        (ro.Adagrad(), 0.50614),
        (ro.Adam(), 0.52381),
        (ro.Ftrl(), 0.34996),
        (ro.Momentum(), 0.0),
        (ro.RmsProp(), 0.38743),
    ],
)
def test_the_hand_computed_numbers_in_the_guide_are_right(optimizer: ro.RowOptimizer, weight: float) -> None:
    table = table_of(optimizer, 1)
    table.assign([7], np.ones((1, 1), np.float32), time=1)
    table.apply_gradients([7], np.full((1, 1), 2.0, np.float32), learning_rates=[0.5], time=1)
    assert table.lookup(np.array([7]))[0, 0] == pytest.approx(weight, abs=5e-6)


def test_ftrl_shrinks_both_signs_by_l1() -> None:
    table = table_of(ro.Ftrl(l1_regularization_strength=1.0, initial_accumulator_value=0.0), 4)
    table.apply_gradients([7], np.array([[3.0, -3.0, 0.5, -0.5]], np.float32), learning_rates=[0.5], time=1)
    np.testing.assert_allclose(table.lookup(np.array([7])), [[-1 / 3, 1 / 3, 0, 0]], rtol=1e-6)


def test_batch_softmax_counts_steps_between_occurrences() -> None:
    segment = Segment(dim=1, optimizer=ro.BatchSoftmax(), initializer=initializers.BatchSoftmaxInit(1.0))
    table = HashTable(TableConfig(segments=[segment]))
    for step in range(0, 400, 4):
        table.apply_gradients([7], np.full((1, 1), 123.0, np.float32), step=step, time=1)
    np.testing.assert_allclose(table.lookup(np.array([7])), [[4.0]], rtol=1e-3)


def test_batch_softmax_refuses_more_than_one_dim() -> None:
    with pytest.raises(ValueError, match="dim 1"):
        table_of(ro.BatchSoftmax(), 2)


def test_warm_up_reaches_the_table_through_the_step() -> None:
    table = table_of(ro.Sgd(learning_rate=0.5, warmup_steps=10), 1)
    expected = 0.0
    for step, rate in [(0, 0.0), (1, 0.05), (5, 0.25), (10, 0.5), (1000, 0.5)]:
        table.apply_gradients([7], np.ones((1, 1), np.float32), step=step, time=1)
        expected -= rate
        assert table.lookup(np.array([7]))[0, 0] == pytest.approx(expected, rel=1e-6)


def test_segments_learn_by_their_own_rules_and_rates() -> None:
    segments = [
        Segment(dim=2, optimizer=ro.Sgd(learning_rate=1.0)),
        Segment(dim=3, optimizer=ro.Adam(stochastic_rounding=True)),
        Segment(dim=1, optimizer=ro.BatchSoftmax(learning_rate=0.5)),
    ]
    table = HashTable(TableConfig(segments=segments))
    third = np.float32(1.0) / np.float32(3.0)
    table.apply_gradients([7], np.full((1, 6), third, np.float32), step=8, time=1)
    row = table.lookup(np.array([7]))[0]
    assert (row[:2] == -third).all()  # float32 digits kept: rounding belongs to the second segment alone
    assert (row[2:5] == row[2:5].astype(np.float16)).all()
    assert row[5] == 4.0


# Stochastic rounding


def rounded(weight: float, seed: int, count: int = 100_000) -> Floats:
    """`count` rows of this weight after one update that only rounds."""
    table = table_of(ro.Sgd(stochastic_rounding=True), 1, seed=seed)
    ids = np.arange(count)
    table.assign(ids, np.full((count, 1), weight, np.float32), time=1)
    table.apply_gradients(ids, np.zeros((count, 1), np.float32), step=1, time=1)
    values: Floats = table.lookup(ids)[:, 0]
    return values


@pytest.mark.parametrize("weight", [1 + 0.3 * 2**-10, -(2 + 0.7 * 2**-9), 5.2 * 2**-24, 0.1 * 2**-24, 1000.123])
def test_stochastic_rounding_keeps_the_mean(weight: float) -> None:
    values = rounded(weight, seed=1)
    assert (values == values.astype(np.float16)).all()
    low, high = values.min(), values.max()
    assert np.nextafter(np.float16(low), np.float16(np.inf)) == high
    five_sigma = 5 * 0.5 * float(high - low) / np.sqrt(len(values))
    assert abs(values.astype(np.float64).mean() - float(np.float32(weight))) < five_sigma


def test_stochastic_rounding_depends_on_the_seed_and_nothing_else() -> None:
    np.testing.assert_array_equal(rounded(0.1, seed=3, count=1000), rounded(0.1, seed=3, count=1000))
    assert (rounded(0.1, seed=3, count=1000) != rounded(0.1, seed=4, count=1000)).any()


def test_stochastic_rounding_does_not_depend_on_threads() -> None:
    before = _core.num_threads()
    results = []
    try:
        for threads in (1, 3):
            _core.set_num_threads(threads)
            results.append(rounded(0.1, seed=3, count=20_000))
    finally:
        _core.set_num_threads(before)
    np.testing.assert_array_equal(results[0], results[1])


def test_stochastic_rounding_draws_again_at_every_step() -> None:
    table = table_of(ro.Sgd(stochastic_rounding=True), 64)
    results = []
    for step in range(2):
        table.assign([7], np.full((1, 64), 0.1, np.float32), time=1)
        table.apply_gradients([7], np.zeros((1, 64), np.float32), step=step, time=1)
        results.append(table.lookup(np.array([7])))
    assert (results[0] != results[1]).any()


def test_stochastic_rounding_leaves_representable_weights_and_saturates() -> None:
    assert set(rounded(-0.375, seed=1, count=1000)) == {np.float32(-0.375)}
    assert set(rounded(1e6, seed=1, count=10)) == {np.float32(65504)}
    assert set(rounded(-1e6, seed=1, count=10)) == {np.float32(-65504)}


@pytest.mark.parametrize("cls", ro.every_rule())
def test_stochastic_rounding_wraps_every_optimizer(cls: Any) -> None:
    dim = 1 if cls is ro.BatchSoftmax else 9
    table = table_of(cls(stochastic_rounding=True), dim)
    gradients = np.random.default_rng(0).normal(0, 1, (50, dim)).astype(np.float32)
    for step in range(5):
        table.apply_gradients(np.arange(50), gradients, step=step, time=1, learning_rates=[0.1])
    weights = table.lookup(np.arange(50))
    assert (weights == weights.astype(np.float16)).all()
    assert (weights != 0).any()
