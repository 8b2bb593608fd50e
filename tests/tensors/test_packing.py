"""Named tensors packed into one per type and back: the cases that the original published, and damaged packages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monolith.tensors import (
    get_keyed_shape,
    get_typed_keyed_shape,
    merge_dicts,
    pack_tensors,
    pack_typed_keyed_tensors,
    split_tensors_with_type,
    unpack_packed_tensors,
    unpack_tensors,
)

DTYPES = [torch.float32, torch.int64, torch.float64, torch.bool]
shapes = st.lists(st.integers(0, 3), max_size=3)
named_shapes = st.dictionaries(st.text("abc", max_size=2), st.tuples(shapes, st.sampled_from(DTYPES)), max_size=6)


def published(device: torch.device | str = "cpu") -> list[dict[str, torch.Tensor]]:
    """The three dicts of the original's test, one per type."""
    long = {
        "t1": torch.tensor([[0, 0, 1, 0], [0, 2, 0, 3]], device=device),
        "t2": torch.tensor([0, 3, 1, 2], device=device),
    }
    single = {
        "t4": torch.tensor([[1.1, 2.2], [3.3, 4.4]], device=device),
        "t3": torch.tensor([9.1, 2.2], device=device),
    }
    double = {"t5": torch.arange(3.0, 10.0, dtype=torch.float64, device=device)}
    return [long, single, double]


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name], tensor)


# one type


def test_tensors_lie_end_to_end_in_sorted_order(device: torch.device) -> None:
    tensors = {
        "y": torch.tensor([[4, 5], [6, 7]], device=device),
        "x": torch.tensor([1, 2], device=device),
    }
    packed, sizes = pack_tensors(tensors)
    assert packed.tolist() == [1, 2, 4, 5, 6, 7]
    assert sizes.tolist() == [2, 4]
    assert (packed.device, sizes.device.type, sizes.dtype) == (device, "cpu", torch.int64)
    unpacked = unpack_tensors(get_keyed_shape(tensors), (packed, sizes))
    assert list(unpacked) == ["x", "y"]
    assert_same(unpacked, tensors)


@given(named=st.dictionaries(st.text("abc", max_size=2), shapes, min_size=1, max_size=6))
def test_what_was_packed_is_unpacked(named: dict[str, list[int]]) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(dims, generator=generator) for name, dims in named.items()}
    packed, sizes = pack_tensors(tensors)
    assert sizes.tolist() == [tensors[name].numel() for name in sorted(tensors)]
    assert_same(unpack_tensors(get_keyed_shape(tensors), (packed, sizes)), tensors)


def test_one_set_of_shapes_serves_batches_of_any_length() -> None:
    shapes_of_all = {"ids": (None, 2), "labels": (None,)}
    for batch in (3, 0, 1):
        tensors = {"labels": torch.rand(batch), "ids": torch.rand(batch, 2)}
        assert_same(unpack_tensors(shapes_of_all, pack_tensors(tensors)), tensors)


def test_unpacked_tensors_are_views_and_gradients_pass() -> None:
    tensors = {"a": torch.ones(2, 2, requires_grad=True), "b": torch.ones(3, requires_grad=True)}
    packed = pack_tensors(tensors)
    unpacked = unpack_tensors({"a": (2, 2), "b": (3,)}, packed)
    assert unpacked["b"].data_ptr() == packed[0].data_ptr() + 4 * packed[0].element_size()
    torch.autograd.backward(unpacked["a"].sum() * 2 + unpacked["b"].sum() * 3)
    assert tensors["a"].grad is not None
    assert tensors["a"].grad.tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert tensors["b"].grad is not None
    assert tensors["b"].grad.tolist() == [3.0, 3.0, 3.0]


@pytest.mark.parametrize(
    ("tensors", "error", "text"),
    [
        ({}, ValueError, "at least one tensor is needed"),
        (
            {"a": torch.ones(1), "b": torch.ones(1).long()},
            ValueError,
            "got torch.float32 on cpu, torch.int64 on cpu; see",
        ),
        ({"a": torch.ones(1), "b": torch.ones(1, device="meta")}, ValueError, "torch.float32 on meta"),
        ({"a": [1, 2]}, TypeError, "must be a tensor, got list"),
    ],
)
def test_what_cannot_lie_end_to_end_is_refused(tensors: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        pack_tensors(tensors)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("keyed_shape", "packed", "sizes", "text"),
    [
        ({"a": (2,)}, [1, 2], [1, 1], r"a size is needed for each of 1 names, got 2"),
        ({"a": (1,), "b": (2,)}, [1, 2], [1, 2], r"add up to the 2 packed values, got \[1, 2\]"),
        ({"a": (1,), "b": (2,)}, [1, 2], [3, -1], r"sizes must be >= 0 .* got \[3, -1\]"),
        ({"a": (2,)}, [[1, 2]], [2], r"must have one dim, got shape \(1, 2\)"),
        ({"a": (3,)}, [1, 2], [2], r"with 2 values, but the requested shape has 3"),
        ({}, [1], [], r"add up to the 1 packed values, got \[\]"),
    ],
)
def test_packages_that_do_not_fit_are_refused(
    keyed_shape: dict[str, Any], packed: list[Any], sizes: list[int], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        unpack_tensors(keyed_shape, (torch.tensor(packed), torch.tensor(sizes, dtype=torch.int64)))


# several types


def test_dicts_of_three_types_and_their_sizes(device: torch.device) -> None:
    dicts = published(device)
    packed = pack_typed_keyed_tensors(dicts)
    assert len(packed) == 4
    for tensor, tensors in zip(packed, dicts, strict=False):
        assert torch.equal(tensor, pack_tensors(tensors)[0])
    assert packed[3].tolist() == [2, 2, 1, 8, 4, 2, 4, 7]  # tensors of each dict, then elements of each tensor
    assert packed[3].dtype == torch.int64
    for found, expected in zip(unpack_packed_tensors(get_typed_keyed_shape(dicts), packed), dicts, strict=True):
        assert_same(found, expected)


def test_dicts_of_unknown_batch_length() -> None:
    typed_shapes = [{"t1": (None, 3, 4), "t2": (None, 2)}, {"t3": (None,), "t4": (None, 2, 2)}]
    dicts = [
        {"t1": torch.arange(1, 25, dtype=torch.int32).reshape(-1, 3, 4), "t2": torch.tensor([[9, 8], [7, 6]]).int()},
        {"t3": torch.tensor([9.0, 12.0, 15.0]), "t4": torch.arange(1.0, 9.0).reshape(-1, 2, 2)},
    ]
    for found, expected in zip(
        unpack_packed_tensors(typed_shapes, pack_typed_keyed_tensors(dicts)), dicts, strict=True
    ):
        assert_same(found, expected)


def test_sizes_may_have_travelled_to_the_device(device: torch.device) -> None:
    dicts = published(device)
    moved = [tensor.to(device) for tensor in pack_typed_keyed_tensors(dicts)]
    for found, expected in zip(unpack_packed_tensors(get_typed_keyed_shape(dicts), moved), dicts, strict=True):
        assert_same(found, expected)


def test_tensors_are_grouped_by_the_name_of_their_type_and_merged_again() -> None:
    long, single, double = published()
    everything = {**long, **single, **double}
    groups = split_tensors_with_type(everything)
    assert [list(group) for group in groups] == [["t4", "t3"], ["t5"], ["t1", "t2"]]  # float32, float64, int64
    for found, expected in zip(groups, [single, double, long], strict=True):
        assert_same(found, expected)
    assert_same(merge_dicts(groups), everything)


@given(named=named_shapes)
def test_any_mixture_goes_there_and_back(named: dict[str, tuple[list[int], torch.dtype]]) -> None:
    tensors = {name: torch.ones(dims).mul(len(name)).to(dtype) for name, (dims, dtype) in named.items()}
    groups = split_tensors_with_type(tensors)
    names = [str(next(iter(group.values())).dtype) for group in groups]
    assert names == sorted({str(tensor.dtype) for tensor in tensors.values()})
    packed = pack_typed_keyed_tensors(groups)
    assert packed[-1].tolist()[: len(groups)] == [len(group) for group in groups]
    assert_same(merge_dicts(unpack_packed_tensors(get_typed_keyed_shape(groups), packed)), tensors)


def test_a_name_in_two_dicts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"one dict only, got \['a'\] in two"):
        merge_dicts([{"a": torch.ones(1), "b": torch.ones(1)}, {"a": torch.ones(2)}])


@pytest.mark.parametrize(
    ("typed_shapes", "change", "text"),
    [
        ([{"a": (1,)}], slice(0, 1), "1 packed tensors and their sizes are needed, got 1"),
        ([{"a": (1,)}, {"b": (1,)}], slice(0, 2), "2 packed tensors and their sizes are needed, got 2"),
        ([{"a": (1,), "b": (1,)}], slice(0, 2), r"given for \[2\] tensors, but \[1\] with 1 sizes were packed"),
        ([{}], slice(0, 2), r"given for \[0\] tensors, but \[1\] with 1 sizes were packed"),
    ],
)
def test_lists_that_do_not_fit_are_refused(typed_shapes: list[dict[str, Any]], change: slice, text: str) -> None:
    packed = pack_typed_keyed_tensors([{"a": torch.ones(1)}])
    with pytest.raises(ValueError, match=text):
        unpack_packed_tensors(typed_shapes, packed[change])


def test_sizes_of_other_dicts_are_refused() -> None:
    packed = pack_typed_keyed_tensors([{"a": torch.ones(1)}, {"b": torch.ones(1), "c": torch.ones(1)}])
    with pytest.raises(ValueError, match=r"given for \[2, 1\] tensors, but \[1, 2\] with 3 sizes were packed"):
        unpack_packed_tensors([{"a": (1,), "b": (1,)}, {"c": (1,)}], packed)


def test_cut_sizes_are_refused() -> None:
    packed = pack_typed_keyed_tensors([{"a": torch.ones(1), "b": torch.ones(2)}])
    with pytest.raises(ValueError, match=r"given for \[2\] tensors, but \[2\] with 1 sizes were packed"):
        unpack_packed_tensors([{"a": (1,), "b": (2,)}], [packed[0], packed[1][:-1]])
