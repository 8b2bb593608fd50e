"""What is learnt at the places of a buffer goes back to the values that were copied there."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monolith.tables import id_kernels as kernels


def joined(lists: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(lists))


def splits_of(lengths: list[int]) -> list[int]:
    return [0, *itertools.accumulate(lengths)]


def test_values_learn_from_every_place_they_were_copied_to() -> None:
    dims = [2, 3]
    unique_keys = kernels.unique_key_with_value_and_offset(torch.tensor([7, 8, 7, 7]), [0, 3, 4], dims)
    values = torch.tensor([1.0, 2, 8, 9, 3, 4, 5], requires_grad=True)
    filled = kernels.fill_with_offset_map([0, 1, 2], [0, 2, 3], values, unique_keys, dims)
    assert filled is unique_keys.buffer
    assert filled.tolist() == [1, 2, 8, 9, 1, 2, 3, 4, 5]
    (filled * torch.tensor([1.0, 2, 3, 4, 10, 20, 5, 6, 7])).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [11, 22, 3, 4, 5, 6, 7]


@given(rows=st.lists(st.lists(st.integers(0, 5), max_size=8), min_size=1, max_size=4), data=st.data())
def test_the_gradient_of_a_fill_is_that_of_its_numbers(rows: list[list[int]], data: st.DataObject) -> None:
    dims = data.draw(st.lists(st.integers(1, 3), min_size=len(rows), max_size=len(rows)))
    unique_keys = kernels.unique_key_with_value_and_offset(
        torch.tensor(joined(rows), dtype=torch.int64), splits_of([len(row) for row in rows]), dims
    )
    # Answers come in two calls, as those of two shards; some positions stand twice, and the later value counts.
    chosen: list[list[list[int]]] = [[], []]
    for number in range(len(rows)):
        begin, end = unique_keys.row_splits[number : number + 2].tolist()
        places = st.lists(st.integers(begin, end - 1), max_size=4) if end > begin else st.just([])
        for call in chosen:
            call.append(data.draw(places))

    def filled(*parts: torch.Tensor) -> torch.Tensor:
        own = unique_keys._replace(buffer=torch.zeros_like(unique_keys.buffer))
        for call, values in zip(chosen, parts, strict=True):
            kernels.fill_with_offset_map(joined(call), splits_of([len(row) for row in call]), values, own, dims)
        buffer: torch.Tensor = own.buffer
        return buffer

    sizes = [sum(len(row) * dim for row, dim in zip(call, dims, strict=True)) for call in chosen]
    parts = [torch.rand(size, requires_grad=True) for size in sizes]
    out = filled(*parts)
    weights = torch.arange(1.0, len(out) + 1)
    if out.requires_grad:
        torch.autograd.backward(out, weights)
    # The function is linear: each gradient is how much the weighed sum moves with its value.
    for number, part in enumerate(parts):
        for at in range(len(part)):
            moved = [each.detach().clone() for each in parts]
            moved[number][at] += 1.0
            change = (filled(*moved).double() - out.detach().double()).mul(weights).sum()
            assert part.grad is not None
            assert float(part.grad[at]) == pytest.approx(float(change), abs=1e-3)


@pytest.mark.filterwarnings("ignore:Input #0 requires gradient and is not a double:UserWarning")  # the kernel's type
def test_gradcheck_of_a_fill() -> None:
    dims = [2, 1]
    unique_keys = kernels.unique_key_with_value_and_offset(torch.tensor([7, 8, 7, 3]), [0, 3, 4], dims)

    def copied(values: torch.Tensor) -> torch.Tensor:
        own = unique_keys._replace(buffer=torch.zeros_like(unique_keys.buffer))
        filled: torch.Tensor = kernels.fill_with_offset_map([0, 1, 2], [0, 2, 3], values, own, dims)
        return filled

    assert torch.autograd.gradcheck(copied, torch.rand(5, requires_grad=True), eps=0.5, atol=1e-4)


def test_a_buffer_that_carries_no_gradient_is_refused_for_values_that_need_one() -> None:
    unique_keys = kernels.unique_key_with_value_and_offset(np.array([7]), [0, 1], [2])
    values = torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match="values require a gradient, which a NumPy buffer cannot carry"):
        kernels.fill_with_offset_map([0], [0, 1], values, unique_keys, [2])
    with torch.no_grad():
        assert kernels.fill_with_offset_map([0], [0, 1], values, unique_keys, [2]).tolist() == [1, 1]
