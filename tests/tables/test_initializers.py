"""Initializers: their configs, and what a real table makes of them."""

from __future__ import annotations

import inspect
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import monolith as ml
from monolith.tables import HashTable, Segment, TableConfig, initializers

Floats = NDArray[np.float32]

EXAMPLES: dict[type[initializers.Initializer], initializers.Initializer] = {
    initializers.Zeros: initializers.Zeros(),
    initializers.Ones: initializers.Ones(),
    initializers.Constant: initializers.Constant(0.25),
    initializers.RandomUniform: initializers.RandomUniform(-1.0, 3.0),
    initializers.RandomNormal: initializers.RandomNormal(mean=2.0, stddev=3.0),
    initializers.TruncatedNormal: initializers.TruncatedNormal(mean=2.0, stddev=3.0),
    initializers.GlorotUniform: initializers.GlorotUniform(scale=2.0),
    initializers.BatchSoftmaxInit: initializers.BatchSoftmaxInit(5.0),
}
RANDOM = [
    example for example in EXAMPLES.values() if "normal" in example.kernel()[0] or "uniform" in example.kernel()[0]
]
COUNT = 50_000


def name_of(value: object) -> str:
    return type(value).__name__


def fresh_rows(initializer: initializers.Initializer, dim: int, *, seed: int = 0, count: int = COUNT) -> Floats:
    """float32 [count, dim]: rows of new ids."""
    table = HashTable(TableConfig(segments=[Segment(dim=dim, initializer=initializer)], seed=seed))
    ids = np.arange(count) * 1_000_003 - 5
    table.reinitialize(ids, time=1)
    rows: Floats = table.lookup(ids)
    return rows


def test_every_initializer_class_is_tried_here() -> None:
    found = {
        value
        for value in vars(initializers).values()
        if inspect.isclass(value)
        and issubclass(value, initializers.Initializer)
        and value is not initializers.Initializer
    }
    assert found == set(EXAMPLES)
    assert {cls.__name__ for cls in found} | {"Initializer"} == set(initializers.__all__)


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=name_of)
def test_a_config_survives_json(example: initializers.Initializer) -> None:
    assert initializers.Initializer.from_dict(json.loads(json.dumps(example.to_dict()))) == example


@pytest.mark.parametrize(
    ("example", "value"),
    [
        (initializers.Zeros(), 0.0),
        (initializers.Ones(), 1.0),
        (initializers.Constant(-2.5), -2.5),
        (initializers.Constant(), 0.0),
        (initializers.BatchSoftmaxInit(7), 7.0),
        (initializers.RandomUniform(0.125, 0.125), 0.125),
        (initializers.RandomNormal(mean=0.5, stddev=0.0), 0.5),
    ],
)
def test_constants_fill_the_row(example: initializers.Initializer, value: float) -> None:
    assert (fresh_rows(example, 3, count=100) == value).all()


@pytest.mark.parametrize("example", RANDOM, ids=name_of)
def test_rows_depend_on_seed_and_id_and_nothing_else(example: initializers.Initializer) -> None:
    rows = fresh_rows(example, 5, count=1000)
    np.testing.assert_array_equal(rows, fresh_rows(example, 5, count=1000))
    assert (rows != fresh_rows(example, 5, seed=1, count=1000)).mean() > 0.99
    assert len(np.unique(rows, axis=0)) == 1000
    one_by_one = HashTable(TableConfig(segments=[Segment(dim=5, initializer=example)]))
    for id_ in (np.arange(1000) * 1_000_003 - 5)[::-97]:
        one_by_one.reinitialize(np.array([id_]), time=9)
        np.testing.assert_array_equal(one_by_one.lookup(np.array([id_]))[0], rows[(id_ + 5) // 1_000_003])


@pytest.mark.parametrize("example", RANDOM, ids=name_of)
def test_segments_of_a_row_and_dims_of_a_segment_differ(example: initializers.Initializer) -> None:
    segments = [Segment(dim=4, initializer=example), Segment(dim=4, initializer=example)]
    table = HashTable(TableConfig(segments=segments))
    table.reinitialize(np.array([7]), time=1)
    row = table.lookup(np.array([7]))[0]
    assert len(np.unique(row)) == 8


def test_the_first_update_starts_from_the_initializer() -> None:
    table = HashTable(TableConfig(segments=[Segment(dim=2, initializer=initializers.Ones())]))
    assert (table.lookup(np.array([7])) == 0).all()
    table.apply_gradients([7], np.ones((1, 2), np.float32), learning_rates=[0.25], time=1)
    assert (table.lookup(np.array([7])) == 0.75).all()


@pytest.mark.parametrize("dim", [1, 2, 7, 16])
def test_uniform_fills_its_half_open_interval_evenly(dim: int) -> None:
    rows = fresh_rows(initializers.RandomUniform(-1.0, 3.0), dim)
    assert rows.min() >= -1
    assert rows.max() < 3
    for column in rows.T:
        counts, _ = np.histogram(column, bins=20, range=(-1, 3))
        chi_square = ((counts - COUNT / 20) ** 2 / (COUNT / 20)).sum()
        assert chi_square < 60  # 19 degrees of freedom: beyond 60 once in 300,000


def test_uniform_never_reaches_its_end_even_where_floats_are_sparse() -> None:
    end = np.nextafter(np.float32(1), np.float32(2))
    assert (fresh_rows(initializers.RandomUniform(1.0, float(end)), 4, count=1000) == 1.0).all()


def test_normal_has_its_mean_variance_and_tails() -> None:
    standard = (fresh_rows(initializers.RandomNormal(mean=2.0, stddev=3.0), 4).astype(np.float64) - 2) / 3
    assert abs(standard.mean()) < 0.012
    assert abs(standard.var() - 1) < 0.02
    for sigmas, share in ((1, 0.31731), (2, 0.0455), (3, 0.0027)):
        assert (np.abs(standard) > sigmas).mean() == pytest.approx(share, rel=0.15)


def test_truncated_normal_stays_within_two_deviations() -> None:
    standard = (fresh_rows(initializers.TruncatedNormal(mean=2.0, stddev=3.0), 4).astype(np.float64) - 2) / 3
    assert np.abs(standard).max() <= 2 + 1e-6
    assert np.abs(standard).max() > 1.99
    assert abs(standard.mean()) < 0.012
    assert standard.var() == pytest.approx(0.7737, rel=0.02)


@pytest.mark.parametrize("dim", [1, 8, 33])
def test_glorot_narrows_with_the_dim(dim: int) -> None:
    limit = math.sqrt(6 * 2.0 / (1 + dim))
    rows = fresh_rows(initializers.GlorotUniform(scale=2.0), dim, count=20_000)
    assert np.abs(rows).max() <= limit * (1 + 1e-6)
    assert np.abs(rows).max() > limit * 0.999
    assert rows.astype(np.float64).var() == pytest.approx(limit**2 / 3, rel=0.03)


@given(low=st.floats(-(2.0**100), 2.0**100, width=32), high=st.floats(-(2.0**100), 2.0**100, width=32))
def test_uniform_of_any_ends_stays_inside(low: float, high: float) -> None:
    low, high = min(low, high), max(low, high)
    rows = fresh_rows(initializers.RandomUniform(low, high), 3, count=20)
    assert (rows >= low).all()
    assert ((rows < high) | (low == high)).all()


def test_uniform_and_constant_accept_positions() -> None:
    assert ml.initializers.RandomUniform(-0.05, 0.05) == initializers.RandomUniform(minval=-0.05, maxval=0.05)
    assert initializers.RandomUniform() == initializers.RandomUniform(-0.05, 0.05)
    assert initializers.Constant(0.5) == initializers.Constant(constant=0.5)


@pytest.mark.parametrize("interval", [0.5, 0, -3, float("nan")])
def test_batch_softmax_needs_an_interval_of_at_least_one(interval: float) -> None:
    with pytest.raises(ValueError, match=f"^init_step_interval should be >= 1, while got {interval}$"):
        initializers.BatchSoftmaxInit(interval)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: initializers.RandomUniform(1.0, 0.0), "RandomUniform: minval must be <= maxval, got 1.0 and 0.0"),
        (lambda: initializers.RandomUniform(0.0, math.inf), "RandomUniform: maxval must be finite, got inf"),
        (lambda: initializers.Constant(math.nan), "Constant: constant must be finite, got nan"),
        (lambda: initializers.RandomNormal(stddev=-1.0), "RandomNormal: stddev must be >= 0, got -1.0"),
        (lambda: initializers.TruncatedNormal(mean=math.inf), "TruncatedNormal: mean must be finite, got inf"),
        (lambda: initializers.GlorotUniform(scale=0.0), "GlorotUniform: scale must be > 0, got 0.0"),
    ],
)
def test_values_out_of_range_are_refused_by_name(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        make()


def test_a_uniform_wider_than_a_float_is_refused_when_the_table_is_made() -> None:
    with pytest.raises(ValueError, match="distance a finite float"):
        fresh_rows(initializers.RandomUniform(-3e38, 3e38), 2, count=1)
