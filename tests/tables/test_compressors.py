"""Compressors: what a serving row keeps of its weights, and what training sees of that."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from monolith.config import Config
from monolith.tables import HashTable, Segment, TableConfig
from monolith.tables.compressors import Bf16, Compressor, FixedR8, Fp16, Fp32, OneBit
from monolith.tables.initializers import Constant
from monolith.tables.row_optimizers import Sgd

ALL = [Fp32(), Fp16(), Bf16(), FixedR8(), FixedR8(0.3), OneBit(), OneBit(step_size=1, amplitude=2.0)]
RAW_IN_TRAINING = [Fp32(), Fp16(), Bf16()]
ODD_FLOATS = np.array(
    [0.0, -0.0, 1e-45, -1e-45, 6e-8, 65519.0, 65520.0, 3e9, -3e9, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan],
    np.float32,
)
ANY_FLOATS = hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(width=32))
MODEST_FLOATS = hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(-4.0, 4.0, width=32))

Array = np.ndarray[Any, np.dtype[Any]]


def table_of(*compressors: Compressor, dim: int = 1, serving: bool = False) -> HashTable:
    segments = [
        Segment(dim, initializer=Constant(0.25), optimizer=Sgd(learning_rate=1.0), compressor=each)
        for each in compressors
    ]
    return HashTable(TableConfig(segments, serving=serving))


def served(compressor: Compressor, values: Array) -> Array:
    """What a serving table gives back for one row."""
    table = table_of(compressor, dim=len(values), serving=True)
    table.assign(np.array([7]), values.reshape(1, -1))
    return np.asarray(table.lookup(np.array([7]))[0])


def trained_view(compressor: Compressor, values: Array, step: int = 0) -> Array:
    """What a training table gives back for one row with these stored weights."""
    table = table_of(compressor, dim=len(values))
    table.assign(np.array([7]), values.reshape(1, -1))
    return np.asarray(table.lookup(np.array([7]), step=step)[0])


def scale_at(compressor: OneBit, step: int) -> float:
    newest = step // compressor.step_size * compressor.step_size
    return min(compressor.max_scale, compressor.init_scale * math.sqrt(1 + 0.005 * newest))


# Configs


def test_kernels_name_the_kind_and_every_parameter() -> None:
    assert Fp32().kernel() == ("fp32", {})
    assert Fp16().kernel() == ("fp16", {})
    assert Bf16().kernel() == ("bf16", {})
    assert FixedR8().kernel() == ("fixed_r8", {"r": 1.0})
    defaults = {"step_size": 200.0, "init_scale": 1.0, "max_scale": 10000.0, "amplitude": 0.05}
    assert OneBit().kernel() == ("one_bit", defaults)


@pytest.mark.parametrize("compressor", ALL, ids=repr)
def test_configs_travel_as_dictionaries(compressor: Compressor) -> None:
    assert Config.from_dict(compressor.to_dict()) == compressor


@pytest.mark.parametrize("r", [0.0, -1.0, 1e-40, math.inf, math.nan, 1e39])
def test_fixed_range_without_a_step_is_refused(r: float) -> None:
    with pytest.raises(ValueError, match="FixedR8: r must be"):
        FixedR8(r=r)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step_size", 0),
        ("step_size", -200),
        ("init_scale", 0.0),
        ("init_scale", math.nan),
        ("max_scale", 0.5),
        ("max_scale", math.inf),
        ("amplitude", 0.0),
        ("amplitude", -0.05),
        ("amplitude", math.nan),
        ("amplitude", 1e-46),
    ],
)
def test_one_bit_refuses_bad_options_by_name(name: str, value: float) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=f"OneBit: {name} must be"):
        OneBit(**options)


def test_unknown_and_wrongly_typed_options_are_refused() -> None:
    with pytest.raises(TypeError, match="did you mean 'amplitude'"):
        OneBit(amplitud=0.1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="step_size must be an integer"):
        OneBit(step_size=1.5)  # type: ignore[arg-type]


# Serving


@pytest.mark.parametrize(
    ("compressor", "bytes_each"), [(Fp32(), 4), (Fp16(), 2), (Bf16(), 2), (FixedR8(), 1), (OneBit(), 1)]
)
def test_serving_rows_take_the_bytes_of_their_format(compressor: Compressor, bytes_each: int) -> None:
    table = table_of(compressor, dim=24, serving=True)
    schema = table.native.core.schema(0)
    assert f"{compressor.kind},{24 * bytes_each}" in schema, schema


@given(values=ANY_FLOATS)
def test_fp32_serves_the_weights_themselves(values: Array) -> None:
    np.testing.assert_array_equal(served(Fp32(), values), values)


@given(values=ANY_FLOATS)
def test_fp16_serves_the_nearest_half(values: Array) -> None:
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(served(Fp16(), values), expected)


@given(values=ANY_FLOATS)
def test_bf16_serves_the_nearest_bfloat16(values: Array) -> None:
    expected = torch.from_numpy(values.copy()).bfloat16().float().numpy()
    np.testing.assert_array_equal(served(Bf16(), values), expected)


def fixed_r8_in_float64(values: Array, r: float) -> tuple[Array, Array]:
    """The quantised values, and where float32 may round to the neighbour because a tie is too near to tell."""
    step = float(np.float32(r)) / 128
    x = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=1e300, neginf=-1e300)
    steps = np.trunc((x + np.where(x >= 0, step / 2, -step / 2)) / step)
    near_tie = np.abs(np.abs(x / step) % 1 - 0.5) < 1e-4
    return np.clip(steps, -128, 127) * step, near_tie


@given(values=st.one_of(ANY_FLOATS, MODEST_FLOATS), r=st.sampled_from([1.0, 0.3, 2.0, 1e-6, 1e6]))
def test_fixed_r8_serves_the_nearest_step_and_saturates(values: Array, r: float) -> None:
    expected, near_tie = fixed_r8_in_float64(values, r)
    given_back = served(FixedR8(r), values)
    np.testing.assert_allclose(given_back[~near_tie], expected[~near_tie], rtol=1e-6)
    assert np.all(np.abs(given_back - expected) <= r / 128 * 1.001)


def test_fixed_r8_rounds_halves_away_from_zero() -> None:
    halves = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5], np.float32) / 128
    np.testing.assert_array_equal(served(FixedR8(), halves) * 128, [1, 2, 3, -1, -2, -3])


def test_fixed_r8_keeps_huge_values_on_their_own_side() -> None:
    huge = np.array([1.0, -1.0, 1.8e7, -1.8e7, 1e30, -1e30, np.inf, -np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(served(FixedR8(), huge) * 128, [127, -128, 127, -128, 127, -128, 127, -128, 0])


@given(values=ANY_FLOATS)
def test_one_bit_serves_the_sign(values: Array) -> None:
    expected = np.where(values > 0, np.float32(0.05), np.float32(-0.05))
    np.testing.assert_array_equal(served(OneBit(), values), expected)


@pytest.mark.parametrize("compressor", ALL, ids=repr)
def test_serving_what_was_served_changes_nothing(compressor: Compressor) -> None:
    once = served(compressor, np.concatenate([np.linspace(-1.2, 1.2, 37, dtype=np.float32), ODD_FLOATS]))
    np.testing.assert_array_equal(served(compressor, once), once)


def test_adding_to_a_new_serving_row_starts_from_zero() -> None:
    table = table_of(FixedR8(), dim=2, serving=True)
    table.assign_add(np.array([1]), np.array([[0.5, -0.25]], np.float32))
    np.testing.assert_array_equal(table.lookup(np.array([1])), [[0.5, -0.25]])
    table.assign_add(np.array([1]), np.array([[0.25, 0.25]], np.float32))
    np.testing.assert_array_equal(table.lookup(np.array([1])), [[0.75, 0.0]])


def test_segments_are_compressed_each_in_its_own_way() -> None:
    table = table_of(Fp32(), FixedR8(), OneBit(), Bf16(), Fp16(), dim=3, serving=True)
    values = np.linspace(-0.9, 0.8, 15, dtype=np.float32)
    table.assign(np.array([-1]), values.reshape(1, -1))
    expected = [
        served(each, values[3 * i : 3 * i + 3]) for i, each in enumerate([Fp32(), FixedR8(), OneBit(), Bf16(), Fp16()])
    ]
    np.testing.assert_array_equal(table.lookup(np.array([-1]))[0], np.concatenate(expected))


# Training


@pytest.mark.parametrize("compressor", RAW_IN_TRAINING, ids=repr)
def test_training_with_a_float_format_sees_and_learns_raw_weights(compressor: Compressor) -> None:
    weights = np.array([0.1, -3.7, 1e-9], np.float32)
    table = table_of(compressor, dim=3)
    table.assign(np.array([7]), weights.reshape(1, -1))
    np.testing.assert_array_equal(table.lookup(np.array([7]))[0], weights)
    table.apply_gradients(np.array([7]), np.full((1, 3), 0.5, np.float32))
    np.testing.assert_array_equal(table.lookup(np.array([7]))[0], weights - np.float32(0.5))


@given(values=MODEST_FLOATS)
def test_training_with_fixed_r8_reads_what_serving_will_serve(values: Array) -> None:
    np.testing.assert_array_equal(trained_view(FixedR8(), values), served(FixedR8(), values))


def test_fixed_r8_passes_the_gradient_straight_through_to_the_exact_weight() -> None:
    table = table_of(FixedR8(), dim=2)
    ids = np.array([7])
    table.assign(ids, np.array([[0.3, 5.0]], np.float32))
    gradients = np.array([[0.001, 0.25]], np.float32)
    for _ in range(3):
        table.apply_gradients(ids, gradients)
    exact = np.array([0.3, 5.0], np.float32)
    for _ in range(3):
        exact = exact - gradients[0]
    np.testing.assert_array_equal(table.lookup_rows(ids).weights[0], exact)
    np.testing.assert_array_equal(table.lookup(ids)[0], served(FixedR8(), exact))


@given(
    values=MODEST_FLOATS,
    step=st.integers(0, 5000),
    step_size=st.sampled_from([1, 7, 200]),
    amplitude=st.sampled_from([0.05, 1.0]),
)
def test_one_bit_forward_is_the_scaled_tangent_of_the_step(
    values: Array, step: int, step_size: int, amplitude: float
) -> None:
    compressor = OneBit(step_size=step_size, amplitude=amplitude, max_scale=3.0)
    expected = amplitude * np.tanh(scale_at(compressor, step) * values.astype(np.float64))
    np.testing.assert_allclose(trained_view(compressor, values, step), expected, rtol=1e-6, atol=1e-44)


@given(values=MODEST_FLOATS, step=st.integers(0, 2000))
def test_one_bit_backward_is_the_slope_of_forward(values: Array, step: int) -> None:
    compressor = OneBit(step_size=200, amplitude=0.5)
    table = table_of(compressor, dim=len(values))
    ids = np.array([7])
    table.assign(ids, values.reshape(1, -1))
    gradients = np.linspace(-1, 1, len(values), dtype=np.float32).reshape(1, -1)
    given_gradients = gradients.copy()
    table.apply_gradients(ids, given_gradients, step=step)
    np.testing.assert_array_equal(given_gradients, gradients)
    scale = scale_at(compressor, step)
    tangent = np.tanh(scale * values.astype(np.float64))
    expected = values - gradients[0].astype(np.float64) * 0.5 * scale * (1 - tangent**2)
    np.testing.assert_allclose(table.lookup_rows(ids).weights[0], expected, rtol=1e-6, atol=1e-6)


def test_one_bit_scale_changes_only_at_multiples_of_the_step_size() -> None:
    values = np.array([0.4], np.float32)
    seen = [trained_view(OneBit(), values, step)[0] for step in (0, 199, 200, 201, 399, 400)]
    assert seen[0] == seen[1]
    assert seen[2] == seen[3] == seen[4]
    assert seen[0] < seen[2] < seen[5]


def test_one_bit_scale_needs_no_history() -> None:
    """A table that starts at a late step, as after a restart, sees the same as one that went through all steps."""
    values = np.array([0.4, -0.1], np.float32)
    table = table_of(OneBit(step_size=3), dim=2)
    table.assign(np.array([7]), values.reshape(1, -1))
    for step in range(1000):
        last = table.lookup(np.array([7]), step=step)
    np.testing.assert_array_equal(trained_view(OneBit(step_size=3), values, 999), last[0])


def test_quantised_segments_leave_their_neighbours_alone() -> None:
    table = table_of(FixedR8(), Fp32(), OneBit(), dim=2)
    values = np.array([0.301, -0.7, 0.123, -0.321, 0.2, -0.2], np.float32)
    ids = np.array([7])
    table.assign(ids, values.reshape(1, -1))
    seen = table.lookup(ids, step=0)[0]
    np.testing.assert_array_equal(seen[:2], served(FixedR8(), values[:2]))
    np.testing.assert_array_equal(seen[2:4], values[2:4])
    np.testing.assert_allclose(seen[4:], 0.05 * np.tanh(values[4:].astype(np.float64)), rtol=1e-6)
    table.apply_gradients(ids, np.ones((1, 6), np.float32), step=0)
    weights = table.lookup_rows(ids).weights[0]
    np.testing.assert_array_equal(weights[:4], values[:4] - 1)
    slope = 0.05 * (1 - np.tanh(values[4:].astype(np.float64)) ** 2)
    np.testing.assert_allclose(weights[4:], values[4:] - slope, rtol=1e-6)


def test_duplicate_ids_are_summed_before_the_slope_is_applied() -> None:
    table = table_of(OneBit(amplitude=1.0))
    ids = np.array([7, 7, 7])
    table.assign(np.array([7]), np.array([[0.4]], np.float32))
    table.apply_gradients(ids, np.array([[0.1], [0.2], [0.3]], np.float32))
    expected = 0.4 - 0.6 * (1 - math.tanh(0.4) ** 2)
    assert table.lookup_rows(np.array([7])).weights[0, 0] == pytest.approx(expected, rel=1e-6)


def test_pooled_lookup_adds_quantised_rows() -> None:
    table = table_of(FixedR8(), dim=2)
    rows = np.array([[0.111, -0.222], [0.333, 0.004]], np.float32)
    table.assign(np.array([1, 2]), rows)
    pooled = table.lookup_pooled(np.array([1, 2]), np.array([0, 2]))
    np.testing.assert_allclose(pooled[0], served(FixedR8(), rows[0]) + served(FixedR8(), rows[1]), rtol=1e-6)
