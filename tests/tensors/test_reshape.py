"""Many tensors reshaped in one call: the sizes and cases that the original published, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from monolith.errors import InvalidArgumentError
from monolith.tensors import Ragged, StaticReshapeNBuilder, static_reshape


def test_sizes_and_shapes_of_three_inputs(device: torch.device) -> None:
    inputs = [
        torch.ones(5, dtype=torch.int32, device=device),
        torch.ones(4, 10, device=device),
        torch.ones(2, 2, 3, dtype=torch.int64, device=device),
    ]
    outputs, sizes = static_reshape(inputs, [(1, 5), (5, 8), (None, 2)])
    assert sizes.tolist() == [5, 40, 12]
    assert (sizes.dtype, sizes.device.type) == (torch.int64, "cpu")
    assert [tuple(output.shape) for output in outputs] == [(1, 5), (5, 8), (6, 2)]
    assert [output.dtype for output in outputs] == [torch.int32, torch.float32, torch.int64]
    assert {output.device for output in outputs} == {device}


def test_builder_flattens_a_nested_structure() -> None:
    builder = StaticReshapeNBuilder()
    structure = [
        {"key_0": torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), "key_1": torch.tensor([[3.0, 3.0], [5.0, 5.0]])},
        {"key_1": torch.tensor([[0.0], [1.0], [2.0]])},
    ]
    places = pytree.tree_map(lambda tensor: builder.add(tensor, (None,)), structure)
    assert places == [{"key_0": 0, "key_1": 1}, {"key_1": 2}]
    outputs, sizes = builder.build()
    flat = pytree.tree_map(lambda place: outputs[place].tolist(), places)
    assert flat == [{"key_0": [1, 2, 3, 4, 5, 6], "key_1": [3, 3, 5, 5]}, {"key_1": [0, 1, 2]}]
    assert sizes.tolist() == [6, 4, 3]


def test_nothing_to_reshape_gives_nothing() -> None:
    outputs, sizes = StaticReshapeNBuilder().build()
    assert outputs == []
    assert (sizes.tolist(), sizes.dtype) == ([], torch.int64)


@given(dims=st.lists(st.integers(1, 4), max_size=4), data=st.data())
def test_any_split_of_the_elements_is_reached(dims: list[int], data: st.DataObject) -> None:
    tensor = torch.arange(math.prod(dims)).reshape(dims)
    target: list[int | None] = [*data.draw(st.permutations(dims))]
    if data.draw(st.booleans()) and target:
        target[data.draw(st.integers(0, len(target) - 1))] = data.draw(st.sampled_from([None, -1]))
    (output,), sizes = static_reshape([tensor], [target], enable_parallelism=data.draw(st.booleans()))
    assert torch.equal(output, tensor.reshape([-1 if dim is None else dim for dim in target]))
    assert sizes.tolist() == [tensor.numel()]


@pytest.mark.parametrize(
    ("dims", "shape", "expected"),
    [
        ((0,), (None, 3), (0, 3)),
        ((5, 0), (None, 0), (0, 0)),  # any size would do; the unknown one becomes 0
        ((0, 7), (0, None), (0, 0)),
        ((), (None,), (1,)),
        ((1, 1), (), ()),
        ((2, 3), torch.Size([3, 2]), (3, 2)),
    ],
)
def test_empty_tensors_scalars_and_sizes(dims: tuple[int, ...], shape: Any, expected: tuple[int, ...]) -> None:
    (output,), _ = static_reshape([torch.zeros(dims)], [shape])
    assert tuple(output.shape) == expected


def test_values_that_are_no_contiguous_block_keep_their_order() -> None:
    tensor = torch.arange(6).reshape(2, 3).T
    (output,), _ = static_reshape([tensor], [(None,)])
    assert output.tolist() == [0, 3, 1, 4, 2, 5]


def test_gradient_passes_through() -> None:
    tensor = torch.ones(2, 3, requires_grad=True)
    (output,), _ = static_reshape([tensor], [(3, None)])
    torch.autograd.backward((output * torch.arange(6.0).reshape(3, 2)).sum())
    assert tensor.grad is not None
    assert tensor.grad.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((None, 2, -1), "Only one input size may be -1, not both 0 and 2, got shape [?, 2, ?] for Input[1]"),
        ((None, 4), "Input[1] of size 6 cannot be reshaped as [?, 4]"),
        ((2, 4), "Input[1] to reshape is a tensor with 6 values, but the requested shape has 8"),
        ((), "Input[1] to reshape is a tensor with 6 values, but the requested shape has 1"),
        ((0, None), "Input[1] to reshape is a tensor with 6 values, but the requested shape has 0"),
        ((-2, -3), "sizes must be >= 0, got -3 in shape [-2, -3] of Input[1]"),
        (None, "unknown rank is not allowed, got None as the shape of Input[1]"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shape: Any, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        static_reshape([torch.zeros(1), torch.zeros(2, 3)], [(1,), shape])
    assert text in str(caught.value)


def test_calls_of_the_wrong_kind_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="each input needs a shape, got 1 and 2"):
        static_reshape([torch.zeros(1)], [(1,), (1,)])
    with pytest.raises(TypeError, match=r"Input\[0\] must be a tensor, got Ragged"):
        static_reshape([Ragged.from_lists([[1]])], [(1,)])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        static_reshape([torch.zeros(4)], [(2.0, 2.0)])  # type: ignore[list-item]
