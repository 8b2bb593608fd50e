"""Structures taken apart and put together: the cases that the original published, and everything that may be nested."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from monolith.tensors import NestedTensors, Ragged


class Pair(NamedTuple):
    left: Any
    right: Any


def test_tensors_are_replaced_in_their_places() -> None:
    nested = NestedTensors({"a": torch.ones([]), "b": (torch.ones([]), torch.ones([]))})
    tensors = nested.get_tensors()
    assert [tensor.item() for tensor in tensors] == [1.0, 1.0, 1.0]
    result = nested.get_nested_result([torch.zeros_like(tensor) for tensor in tensors])
    assert result == {"a": 0, "b": (0, 0)}
    assert isinstance(result["b"], tuple)


def test_constants_stay_and_are_no_tensors() -> None:
    nested = NestedTensors({"a": {"b": 2}})
    assert nested.get_tensors() == []
    assert nested.get_nested_result([]) == {"a": {"b": 2}}


def test_ragged_rows_go_there_and_back(device: torch.device) -> None:
    ragged = Ragged.from_lists([[], [1], [2, 3]]).to(device)
    nested = NestedTensors(ragged)
    values, row_splits = nested.get_tensors()
    assert values is ragged.values
    assert row_splits is ragged.row_splits
    result = nested.get_nested_result([values, row_splits])
    assert result.to_lists() == [[], [1], [2, 3]]
    assert result.device == device


def test_ragged_rows_are_rebuilt_around_tensors_without_values() -> None:
    nested = NestedTensors({"ids": Ragged.from_lists([[], [1], [2, 3]])})
    stand_ins = [torch.empty_like(tensor, device="meta") for tensor in nested.get_tensors()]
    result = nested.get_nested_result(stand_ins)["ids"]
    assert (result.num_rows, result.device.type) == (3, "meta")
    assert result.values is stand_ins[0]


def test_tensors_come_first_then_two_for_each_ragged_in_the_order_of_the_structure() -> None:
    first, second, third = (torch.tensor([number]) for number in range(3))
    one, two = Ragged.from_lists([[4]]), Ragged.from_lists([[], [5]])
    nested = NestedTensors([one, {"z": first, "a": (two, second)}, third])
    expected = [first, second, third, one.values, one.row_splits, two.values, two.row_splits]
    found = nested.get_tensors()
    assert len(found) == len(expected)
    assert all(left is right for left, right in zip(found, expected, strict=True))


def test_every_kind_of_constant_is_returned_as_the_same_object() -> None:
    weight = nn.Parameter(torch.ones(3))
    constants = [True, False, 0, -(1 << 70), "text", "", b"bytes", weight, None]
    nested = NestedTensors(constants)
    assert nested.get_tensors() == []  # a parameter belongs to the model and does not travel
    result = nested.get_nested_result([])
    assert all(left is right for left, right in zip(result, constants, strict=True))


def test_the_structure_of_the_caller_is_not_changed_nor_kept() -> None:
    tensor, ragged = torch.tensor([1.0]), Ragged.from_lists([[1]])
    inner = [ragged, 3]
    structure = {"a": tensor, "b": inner, "c": (tensor, None)}
    before = copy.copy(structure)
    nested = NestedTensors(structure)
    assert structure.keys() == before.keys()
    assert all(structure[key] is before[key] for key in before)
    assert inner[0] is ragged
    structure["a"] = "changed"
    inner.clear()
    first, second = (nested.get_nested_result(nested.get_tensors()) for _ in range(2))
    assert first["a"] is tensor
    assert first["b"][1] == 3
    first["b"].clear()
    assert second["b"][0].equal(ragged)
    assert len(nested.get_nested_result(nested.get_tensors())["b"]) == 2


def test_one_object_in_two_places_is_listed_once() -> None:
    tensor, ragged = torch.tensor([1.0]), Ragged.from_lists([[1]])
    nested = NestedTensors([tensor, {"again": tensor}, ragged, (ragged,)])
    assert len(nested.get_tensors()) == 3
    result = nested.get_nested_result([torch.tensor([2.0]), torch.tensor([5]), torch.tensor([0, 1])])
    assert result[0] is result[1]["again"]
    assert result[2] is result[3][0]
    assert result[2].to_lists() == [[5]]


def test_equal_tensors_that_are_two_objects_stay_two() -> None:
    assert len(NestedTensors([torch.ones(1), torch.ones(1)]).get_tensors()) == 2


def test_containers_keep_their_classes() -> None:
    counted: defaultdict[str, Any] = defaultdict(list, {"k": torch.tensor([1])})
    ordered = OrderedDict([("b", torch.tensor([2])), ("a", torch.tensor([3]))])
    nested = NestedTensors([Pair(torch.tensor([0]), right=counted), ordered, (), [], {}, {5: True}])
    pair, result_ordered, *rest = nested.get_nested_result(nested.get_tensors())
    assert isinstance(pair, Pair)
    assert isinstance(pair.right, defaultdict)
    assert pair.right["new"] == []
    assert isinstance(result_ordered, OrderedDict)
    assert list(result_ordered) == ["b", "a"]
    assert rest == [(), [], {}, {5: True}]
    assert "new" not in counted


def test_a_leaf_alone_and_nothing_at_all_are_structures() -> None:
    assert NestedTensors(None).get_nested_result([]) is None
    assert NestedTensors("x").get_nested_result([]) == "x"
    tensor = torch.tensor([1])
    assert NestedTensors(tensor).get_nested_result([tensor]) is tensor


leaves = st.sampled_from(["tensor", "ragged", True, 7, "text", None])
structures = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=12,
)


def with_tensors(structure: Any, made: list[Any]) -> Any:
    """The structure with fresh tensors and raggeds for their names, noted in `made`."""
    if isinstance(structure, dict):
        return {key: with_tensors(item, made) for key, item in structure.items()}
    if isinstance(structure, list | tuple):
        return type(structure)(with_tensors(item, made) for item in structure)
    if structure == "tensor":
        made.append(torch.tensor([len(made)]))
        return made[-1]
    if structure == "ragged":
        made.append(Ragged.from_lists([[len(made)], []]))
        return made[-1]
    return structure


def plain(structure: Any) -> Any:
    if isinstance(structure, dict):
        return {key: plain(item) for key, item in structure.items()}
    if isinstance(structure, list | tuple):
        return type(structure)(plain(item) for item in structure)
    if isinstance(structure, torch.Tensor):
        return structure.tolist()
    return structure.to_lists() if isinstance(structure, Ragged) else structure


@given(structure=structures)
def test_any_structure_goes_there_and_back(structure: Any) -> None:
    made: list[Any] = []
    filled = with_tensors(structure, made)
    nested = NestedTensors(filled)
    raggeds = [each for each in made if isinstance(each, Ragged)]
    assert len(nested.get_tensors()) == len(made) + len(raggeds)
    assert plain(nested.get_nested_result([tensor.clone() for tensor in nested.get_tensors()])) == plain(filled)


# refused


@pytest.mark.parametrize("wrong", [1.5, float("nan"), np.ones(2), np.int64(3), {1, 2}, object(), torch.float32, 1j])
def test_another_leaf_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^Tensor is not supported. ") as caught:
        NestedTensors({"a": [torch.ones(1), (wrong,)]})
    assert str(wrong) in str(caught.value)


def test_rows_of_rows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^Nested tensor doesn't support nested RaggedTensor.$"):
        NestedTensors([Ragged.from_lists([[[1]]])])


def test_rows_with_inner_dims_are_one_level_of_rows() -> None:
    ragged = Ragged(torch.ones(3, 2), torch.tensor([0, 1, 3]))
    nested = NestedTensors(ragged)
    assert nested.get_nested_result(nested.get_tensors()).equal(ragged)


@pytest.mark.parametrize("count", [0, 1, 2, 4, 5])
def test_another_number_of_tensors_is_refused(count: int) -> None:
    nested = NestedTensors({"a": torch.ones(1), "b": Ragged.from_lists([[1]])})
    with pytest.raises(ValueError, match=f"1 tensors and 2 for each of 1 raggeds are needed, got {count} in all"):
        nested.get_nested_result([torch.zeros(1)] * count)
