"""Slots and slices as configs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import monolith as ml
from monolith.nn.combiners import FirstN, ReduceMean, ReduceSum
from monolith.nn.slot import Slice, Slot


def test_a_newcomer_gives_a_dim_and_gets_a_uniform_start_and_a_sum() -> None:
    slot = Slot(16)
    assert slot.dim == 16
    assert slot.slices == (Slice(16),)
    assert slot.combiner == ReduceSum()
    assert slot.initializer == ml.initializers.RandomUniform(-0.05, 0.05)
    assert slot.optimizer is None, "the one of the Embeddings"
    assert (slot.min_count, slot.expire_days) == (0, 36500)
    assert slot.compressor == ml.compressors.Fp16()


def test_slices_add_up_to_the_dim() -> None:
    slot = Slot(slices=[Slice(8), Slice(1)], combiner="mean")
    assert slot.dim == 9
    assert slot.slice_dims == [8, 1]
    assert slot.combiner == ReduceMean()
    assert Slot(dim=9, slices=[Slice(8), Slice(1)]) == Slot(slices=[Slice(8), Slice(1)])


def test_the_bias_is_a_slice_of_one_weight_that_starts_at_zero() -> None:
    bias = Slice.bias()
    assert bias.dim == 1
    assert bias.initializer == ml.initializers.Zeros()
    assert bias.optimizer == ml.row_optimizers.Ftrl(initial_accumulator_value=1e-6, beta=1.0)
    assert bias.compressor == ml.compressors.Fp32()


def test_split_takes_the_output_apart() -> None:
    slot = Slot(slices=[Slice.bias(), Slice(3)])
    output = torch.arange(8.0).view(2, 4)
    bias, vector = slot.split(output)
    assert bias.tolist() == [[0.0], [4.0]]
    assert vector.tolist() == [[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]]
    assert [part.shape for part in slot.split(torch.zeros(2, 5, 4))] == [(2, 5, 1), (2, 5, 3)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"dim or slices must be given; write Slot\(dim=16\)"),
        ({"dim": 0}, r"Slice: dim must be >= 1, got 0"),
        ({"dim": -3}, r"Slice: dim must be >= 1, got -3"),
        ({"dim": 8, "slices": [Slice(8), Slice(1)]}, r"dim is 8, but the slices have 9 dims together"),
        ({"dim": 1, "combiner": "max"}, r"combiner must be 'sum'"),
        ({"dim": 1, "min_count": -1}, r"Slot: min_count must be >= 0, got -1"),
        ({"dim": 1, "expire_days": -1}, r"Slot: expire_days must be >= 0, got -1"),
        ({"dim": 1, "id_layout": "v1"}, r"id_layout must be 'int64', 'raw', 'v2' or 'any', got 'v1'"),
        ({"dim": 1, "padding_id": 2**63}, r"padding_id must be an int64, got 9223372036854775808"),
        ({"dim": 1, "number": 32768}, r"number must be in \[0, 32768\), got 32768"),
        ({"dim": 1, "number": -1}, r"number must be in \[0, 32768\), got -1"),
        ({"dim": 1, "learning_rate": math.nan}, r"learning_rate must be finite and >= 0, got nan"),
        ({"dim": 1, "learning_rate": -0.1}, r"learning_rate must be finite and >= 0, got -0.1"),
        ({"shares": "item", "dim": 4}, r"it shares the rows of 'item', so dim must be set there, not here"),
        ({"shares": "item", "min_count": 2, "number": 3}, r"so min_count, number must be set there"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Slot(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 1.0}, r"Slot: dim must be an integer, got 1.0"),
        ({"dim": True}, r"Slot: dim must be an integer, got True"),
        ({"slices": [8]}, r"slices must be Slice\(...\), got 8"),
        ({"dim": 1, "optimizer": torch.optim.Adagrad}, r"optimizer must be one of monolith's optimizers"),
        ({"dim": 1, "initializer": "zeros"}, r"initializer must be one of monolith's initializers, got 'zeros'"),
        ({"dim": 1, "learning_rate": "0.1"}, r"learning_rate must be a number or a function of the step"),
        ({"dim": 1, "learning_rate": lambda step, n: step / n}, r"called with the step alone.*functools.partial"),
        ({"dim": 1, "min_count": 1.5}, r"Slot: min_count must be an integer"),
        ({"dim": 1, "mincount": 1}, r"unknown option 'mincount'; did you mean 'min_count'\?"),
    ],
)
def test_what_is_of_the_wrong_kind_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Slot(**options)


def test_a_sharing_slot_has_a_combiner_of_its_own() -> None:
    slot = Slot(shares="item", combiner=FirstN(20))
    assert slot.combiner == FirstN(20)
    assert slot.dim is None
