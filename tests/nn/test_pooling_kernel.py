"""The core's pooling of many slots against plain loops in float64, for shapes that hypothesis chooses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import monolith as ml
from monolith import _core

FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """Slots over tables, and a batch of them."""

    dims: list[int]
    tables: list[int]
    places: list[int]
    poolings: list[int]
    lengths: list[list[int]]
    """[F][B] ids of each example."""
    is_uniform: list[bool]
    """Slots handed over by one number instead of row splits."""
    is_apart: bool
    """Slots have no ids in common; else those of a table do."""
    seed: int

    @property
    def owners(self) -> list[int]:
        return list(range(len(self.tables))) if self.is_apart else self.tables

    @property
    def widths(self) -> list[int]:
        return [self.dims[t] * (p or 1) for t, p in zip(self.tables, self.places, strict=True)]

    @property
    def columns(self) -> list[int]:
        return [int(end) for end in np.cumsum([0, *self.widths])[:-1]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    common_dim = draw(st.sampled_from([0, 8, 16, 32]))
    dims = draw(st.lists(st.just(common_dim) if common_dim else st.integers(1, 19), min_size=1, max_size=3))
    tables = sorted(draw(st.lists(st.integers(0, len(dims) - 1), min_size=1, max_size=7)))
    places = [draw(st.sampled_from([0, 0, 1, 3])) for _ in tables]
    poolings = [2 if place else draw(st.sampled_from([0, 1, 3])) for place in places]
    num_examples = draw(st.integers(0, 8))
    is_uniform = [draw(st.booleans()) for _ in tables]
    lengths = []
    for uniform in is_uniform:
        if uniform:
            lengths.append([draw(st.integers(0, 3))] * num_examples)
        else:
            lengths.append(draw(st.lists(st.integers(0, 5), min_size=num_examples, max_size=num_examples)))
    return Case(dims, tables, places, poolings, lengths, is_uniform, draw(st.booleans()), draw(st.integers(0, 2**16)))


class Batch:
    """The arrays that the kernel takes, and the row of each id."""

    def __init__(self, case: Case) -> None:
        random = np.random.default_rng(case.seed)
        sizes = [sum(lengths) for lengths in case.lengths]
        ids = [random.integers(0, 6, size) + 10 * owner for size, owner in zip(sizes, case.owners, strict=True)]
        table_splits = np.zeros(len(case.dims) + 1, np.int64)
        for table, size in zip(case.tables, sizes, strict=True):
            table_splits[table + 1 :] += size
        group = ml.TableGroup(
            {f"t{number}": ml.TableConfig([ml.Segment(dim)]) for number, dim in enumerate(case.dims)}
        ).native.core
        self.plan = group.plan(np.concatenate(ids).astype(np.int64), table_splits, True)
        self.inverse, self.splits = np.array(self.plan.inverse), np.array(self.plan.splits)
        self.values = random.standard_normal(group.num_values(self.plan)).astype(np.float32)
        self.gradients = random.standard_normal((self.num_examples(case), sum(case.widths))).astype(np.float32)
        self.per_example = np.array(
            [
                (lengths[0] if lengths else 1) if uniform else -1
                for lengths, uniform in zip(case.lengths, case.is_uniform, strict=True)
            ],
            np.int64,
        )
        ragged = [
            np.cumsum([0, *each]) for each, uniform in zip(case.lengths, case.is_uniform, strict=True) if not uniform
        ]
        self.row_splits = np.concatenate(ragged or [np.empty(0)]).astype(np.int64)
        per_cell = np.diff(self.splits)
        dims_of_rows = np.repeat(np.tile(case.dims, len(per_cell) // len(case.dims)), per_cell)
        self.offsets = np.concatenate([[0], np.cumsum(dims_of_rows)]).astype(int)

    @staticmethod
    def num_examples(case: Case) -> int:
        return len(case.lengths[0])


def layout_of(case: Case) -> _core.PooledLayout:
    return _core.PooledLayout(
        tables=case.tables,
        columns=case.columns,
        places=case.places,
        poolings=case.poolings,
        owners=case.owners,
        dims=case.dims,
        width=sum(case.widths),
    )


def expected(case: Case, batch: Batch, is_silent: list[bool]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Outputs, and sums of the gradients of all slots that are not silent."""
    outputs = np.zeros(batch.gradients.shape)
    sums = np.zeros(len(batch.values))
    position = 0
    for slot, lengths in enumerate(case.lengths):
        dim, column = case.dims[case.tables[slot]], case.columns[slot]
        for example, length in enumerate(lengths):
            for number in range(length):
                row = slice(batch.offsets[batch.inverse[position]], batch.offsets[batch.inverse[position]] + dim)
                position += 1
                if case.places[slot] and number >= case.places[slot]:
                    continue
                begin = column + (number * dim if case.places[slot] else 0)
                scale = {1: 1 / length, 3: length**-0.5}.get(case.poolings[slot], 1.0)
                outputs[example, begin : begin + dim] += scale * batch.values[row].astype(np.float64)
                if not is_silent[slot]:
                    sums[row] += scale * batch.gradients[example, begin : begin + dim].astype(np.float64)
    return outputs, sums


@settings(max_examples=200)
@given(cases(), st.booleans())
def test_pooling_and_its_gradient_equal_plain_loops(case: Case, is_planned: bool) -> None:
    batch, layout = Batch(case), layout_of(case)
    is_silent = [slot % 3 == case.seed % 3 for slot in range(len(case.tables))]
    outputs, sums = expected(case, batch, is_silent)
    shape = (batch.num_examples(case), batch.per_example, batch.row_splits, batch.splits, batch.inverse)

    got = np.full(outputs.size, np.nan, np.float32)
    layout.pool(*shape, batch.values, got)
    np.testing.assert_allclose(got.reshape(outputs.shape), outputs, atol=1e-5)

    columns = [
        None if silent else batch.gradients[:, column : column + width]
        for silent, column, width in zip(is_silent, case.columns, case.widths, strict=True)
    ]
    summed = np.full(sums.size, np.nan, np.float32)
    layout.sum_gradients(*shape, columns, summed, batch.plan if is_planned else None)
    np.testing.assert_allclose(summed, sums, atol=1e-5)


def many_examples(num_slots: int, dim: int, lengths: list[int], *, is_uniform: bool) -> Case:
    """Slots apart from each other, with as many examples as are pooled in several pieces."""
    return Case(
        dims=[dim],
        tables=[0] * num_slots,
        places=[0] * num_slots,
        poolings=[(0, 1, 3)[slot % 3] for slot in range(num_slots)],
        lengths=[lengths] * num_slots,
        is_uniform=[is_uniform] * num_slots,
        is_apart=True,
        seed=dim,
    )


@pytest.mark.parametrize("dim", [3, 8, 16, 32, 40])
@pytest.mark.parametrize("lengths", [[1] * 301, [0, 1, 2] * 100])
def test_batches_of_several_pieces_equal_plain_loops(dim: int, lengths: list[int]) -> None:
    case = many_examples(5, dim, lengths, is_uniform=lengths[0] == 1)
    batch, layout = Batch(case), layout_of(case)
    outputs, sums = expected(case, batch, [False] * 5)
    shape = (len(lengths), batch.per_example, batch.row_splits, batch.splits, batch.inverse)
    got, summed = np.full(outputs.size, np.nan, np.float32), np.full(sums.size, np.nan, np.float32)
    layout.pool(*shape, batch.values, got)
    columns = np.split(batch.gradients, case.columns[1:], axis=1)
    assert layout.sum_gradients(*shape, columns, summed, batch.plan)
    np.testing.assert_allclose(got.reshape(outputs.shape), outputs, atol=1e-5)
    np.testing.assert_allclose(summed, sums, atol=1e-3)


@pytest.mark.parametrize("num_slots", [2, 5])
@pytest.mark.parametrize("is_uniform", [True, False])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_a_non_finite_sum_is_reported(num_slots: int, is_uniform: bool, bad: float) -> None:
    case = many_examples(num_slots, 7, [1] * 40, is_uniform=is_uniform)
    batch, layout = Batch(case), layout_of(case)
    shape = (40, batch.per_example, batch.row_splits, batch.splits, batch.inverse)
    summed = np.empty(len(batch.values), np.float32)
    for column in range(num_slots * 7):
        gradients = batch.gradients.copy()
        gradients[:, column] = bad  # 3e38 is finite, twice as much is not
        assert not layout.sum_gradients(*shape, np.split(gradients, case.columns[1:], axis=1), summed, batch.plan)


def one_slot() -> tuple[Case, Batch, _core.PooledLayout]:
    case = Case([4], [0], [0], [False], [[2, 1]], [False], False, 1)
    return case, Batch(case), layout_of(case)


def call(batch: Batch, layout: _core.PooledLayout, **changed: NDArray[Any]) -> None:
    arrays: dict[str, Any] = {
        "ids_per_example": batch.per_example,
        "row_splits": batch.row_splits,
        "splits": batch.splits,
        "inverse": batch.inverse,
        "values": batch.values,
        "outputs": np.empty(8, np.float32),
    }
    layout.pool(2, **{**arrays, **changed})


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("inverse", np.array([0, 1, 99], np.int32)),
        ("inverse", np.array([0, 1, -1], np.int32)),
        ("inverse", np.array([0, 1], np.int32)),
        ("row_splits", np.array([0, 2, 1], np.int64)),
        ("row_splits", np.array([0, 2], np.int64)),
        ("values", np.zeros(3, np.float32)),
        ("outputs", np.zeros(9, np.float32)),
        ("ids_per_example", np.array([1, 1], np.int64)),
        ("splits", np.array([0, 5, 3], np.int64)),
        ("splits", np.empty(0, np.int64)),
    ],
)
def test_arrays_that_do_not_fit_are_refused(name: str, array: NDArray[np.generic]) -> None:
    _, batch, layout = one_slot()
    call(batch, layout)
    with pytest.raises(ValueError, match=r"must|inverse|splits"):
        call(batch, layout, **{name: array})


def test_a_gradient_of_another_width_is_refused() -> None:
    _, batch, layout = one_slot()
    shape = (2, batch.per_example, batch.row_splits, batch.splits, batch.inverse)
    for gradient in (np.zeros((2, 3), np.float32), np.zeros((3, 4), np.float32)):
        with pytest.raises(ValueError, match="gradient"):
            layout.sum_gradients(*shape, [gradient], np.empty(len(batch.values), np.float32))


@pytest.mark.parametrize(
    "changed",
    [{"tables": [1]}, {"tables": [-1]}, {"columns": [1]}, {"columns": [-1]}, {"places": [2]}, {"poolings": []}],
)
def test_a_layout_that_cannot_be_is_refused(changed: dict[str, list[int]]) -> None:
    good = {"tables": [0], "columns": [0], "places": [0], "poolings": [0], "owners": [0], "dims": [4], "width": 4}
    _core.PooledLayout(**good)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="slot"):
        _core.PooledLayout(**{**good, **changed})  # type: ignore[arg-type]
