"""Pooled lookups and their gradients, against plain loops in float64."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from monolith.tables import HashTable, Segment, TableConfig, TableGroup
from monolith.tables.row_optimizers import Sgd

Reals = NDArray[np.float64]

DIM = 3
COMBINERS: list[Any] = ["sum", "mean", "sqrtn", ("first_n", 2), ("first_n", 5)]


def table_of(rows: dict[int, list[float]]) -> HashTable:
    table = HashTable(TableConfig([Segment(DIM, optimizer=Sgd(learning_rate=1.0))]))
    table.assign(list(rows), np.array(list(rows.values()), np.float32).reshape(-1, DIM))
    return table


def pool(rows: Reals, combiner: Any) -> Reals:
    """One example: rows [n, D] in float64."""
    total: Reals = rows.sum(axis=0)
    if combiner == "sum":
        return total
    if combiner == "mean":
        return total / max(1, len(rows))
    if combiner == "sqrtn":
        root: float = max(1, len(rows)) ** 0.5
        return total / root
    result = np.zeros((combiner[1], rows.shape[1]))
    kept = rows[: combiner[1]]
    result[: len(kept)] = kept
    return result


def unpool(gradient: Reals, count: int, combiner: Any) -> Reals:
    """The gradient of each of the `count` ids of one example."""
    if combiner == "sum":
        return np.repeat(gradient[None], count, axis=0)
    if combiner == "mean":
        return np.repeat(gradient[None] / max(1, count), count, axis=0)
    if combiner == "sqrtn":
        return np.repeat(gradient[None] / np.sqrt(max(1, count)), count, axis=0)
    result = np.zeros((count, gradient.shape[-1]))
    kept = gradient[:count]
    result[: len(kept)] = kept
    return result


LENGTHS = st.lists(st.integers(0, 4), max_size=8)


@pytest.mark.parametrize("combiner", COMBINERS)
@given(lengths=LENGTHS, seed=st.integers(0, 100))
def test_pooled_lookup_is_lookup_and_reduce(combiner: Any, lengths: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = table_of({key: rng.standard_normal(DIM).tolist() for key in range(6)})
    ids = rng.integers(0, 8, sum(lengths))
    splits = np.cumsum([0, *lengths])
    rows = table.lookup(ids).astype(np.float64)
    examples = [pool(rows[begin:end], combiner) for begin, end in itertools.pairwise(splits)]
    pooled = table.lookup_pooled(ids, splits, combiner)
    assert pooled.dtype == np.float32
    if examples:
        np.testing.assert_allclose(pooled, np.array(examples), rtol=1e-5, atol=1e-6)
    else:
        assert pooled.shape[0] == 0


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("combiner", COMBINERS)
@given(lengths=LENGTHS, seed=st.integers(0, 100))
def test_pooled_gradient_reaches_each_id_that_took_part(
    combiner: Any, lengths: list[int], seed: int, *, grouped: bool
) -> None:
    rng = np.random.default_rng(seed)
    config = TableConfig([Segment(DIM, optimizer=Sgd(learning_rate=1.0))])
    table = TableGroup({"a": TableConfig([Segment(1)]), "b": config})["b"] if grouped else HashTable(config)
    ids = rng.integers(0, 5, sum(lengths))
    splits = np.cumsum([0, *lengths])
    gradients = rng.standard_normal(table.lookup_pooled(ids, splits, combiner).shape).astype(np.float32)
    expected = np.zeros((5, DIM))
    took_part = set()
    for example, (begin, end) in enumerate(itertools.pairwise(splits)):
        count = end - begin if isinstance(combiner, str) else min(end - begin, combiner[1])
        took_part |= set(ids[begin : begin + count].tolist())
        np.subtract.at(expected, ids[begin:end], unpool(gradients[example].astype(np.float64), end - begin, combiner))
    result = table.apply_pooled_gradients(ids, splits, gradients, combiner, time=9)
    np.testing.assert_allclose(table.lookup(np.arange(5)), expected, rtol=1e-5, atol=1e-5)
    assert result.updated == len(took_part)
    assert set(table.ids().tolist()) == took_part


def test_empty_examples_and_empty_batches_give_zeros() -> None:
    table = table_of({1: [1.0, 2.0, 3.0]})
    none = np.zeros(0, np.int64)
    assert table.lookup_pooled(none, np.array([0]), "mean").shape == (0, DIM)
    assert table.lookup_pooled(none, np.array([0, 0, 0]), "mean").tolist() == [[0.0] * DIM] * 2
    assert table.apply_pooled_gradients(none, np.array([0, 0]), np.ones((1, DIM), np.float32)).updated == 0


def test_times_may_differ_by_id_also_where_some_take_no_part() -> None:
    table = table_of({})
    times = torch.tensor([1, 2, 3])
    table.apply_pooled_gradients(torch.tensor([7, 8, 9]), [0, 3], torch.ones(1, 2, DIM), ("first_n", 2), time=times)
    assert table.lookup_rows([7, 8, 9]).time.tolist() == [1, 2, 0]


def test_pooling_works_on_torch_tensors_and_groups() -> None:
    group = TableGroup({"a": TableConfig([Segment(1)]), "b": TableConfig([Segment(2)])})
    group.assign({"a": [1, 2], "b": [1]}, {"a": [[1.0], [2.0]], "b": [[3.0, 4.0]]})
    pooled = group.lookup_pooled(
        {"a": torch.tensor([1, 2, 2]), "b": torch.tensor([1])},
        {"a": torch.tensor([0, 3]), "b": torch.tensor([0, 1])},
        {"a": "mean"},
    )
    assert torch.allclose(pooled["a"], torch.tensor([[5.0 / 3]]))
    assert pooled["b"].tolist() == [[3.0, 4.0]]


def test_a_gradient_of_an_empty_example_may_be_anything() -> None:
    table = table_of({1: [1.0, 1.0, 1.0]})
    gradients = np.array([[np.nan] * DIM, [1.0] * DIM], np.float32)
    table.apply_pooled_gradients(np.array([1]), np.array([0, 0, 1]), gradients)
    assert table.lookup([1]).tolist() == [[0.0] * DIM]
