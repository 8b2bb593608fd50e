"""Every layer with options and inputs, for the contract that all of them keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from monolith import nn as mnn
from nn.layers.arrays import random_tensor

Inputs = tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """A layer and how to call it with a batch of a given number of rows."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[int], Inputs]


def rows(*sizes: int, seed: int = 0) -> Callable[[int], Inputs]:
    return lambda batch: (random_tensor(batch, *sizes, seed=seed),)


def two(first: tuple[int, ...], second: tuple[int, ...]) -> Callable[[int], Inputs]:
    return lambda batch: (random_tensor(batch, *first, seed=1), random_tensor(batch, *second, seed=2))


def history(query: int, length: int, dim: int) -> Callable[[int], Inputs]:
    def make(batch: int) -> Inputs:
        lengths = torch.arange(batch) % (length + 1)  # the first row is empty
        mask = torch.arange(length) < lengths.unsqueeze(1)
        return random_tensor(batch, query, seed=1), random_tensor(batch, length, dim, seed=2), mask

    return make


def sequence(length: int, dim: int) -> Callable[[int], Inputs]:
    return lambda batch: history(1, length, dim)(batch)[1:]


def tensors(count: int, dim: int) -> Callable[[int], Inputs]:
    return lambda batch: ([random_tensor(batch, dim, seed=index) for index in range(count)],)


def two_lists(left: int, right: int, dim: int) -> Callable[[int], Inputs]:
    def make(batch: int) -> Inputs:
        return (
            [random_tensor(batch, dim, seed=index) for index in range(left)],
            [random_tensor(batch, dim, seed=10 + index) for index in range(right)],
        )

    return make


def self_attention(batch: int) -> Inputs:
    x, mask = sequence(4, 6)(batch)
    return x, None, mask


def cross_attention(batch: int) -> Inputs:
    x, mask = sequence(4, 6)(batch)
    return random_tensor(batch, 2, 6, seed=3), x, mask


CASES = [
    Case("Dense", lambda: mnn.Dense(5, 3, activation="tanh", kernel_norm="trainable"), rows(5)),
    Case("Dense counting dead units", lambda: mnn.Dense(5, 3, activation="relu", counts_dead_units=True), rows(5)),
    Case("MLP", lambda: mnn.MLP(5, [4, 2], activations="swish"), rows(5)),
    Case("MLP with batch norm", lambda: mnn.MLP(5, [4, 2], batch_norm=True), rows(3, 5)),
    Case("LHUCTower", lambda: mnn.LHUCTower(5, [4, 2], lhuc_dims=[3], lhuc_input_dim=2), two((5,), (2,))),
    Case("AddBias", lambda: mnn.AddBias(3, data_format="channels_first"), rows(3, 2)),
    Case("LogitCorrection", lambda: mnn.LogitCorrection(sample_bias=True), lambda batch: (random_tensor(batch), 0.1)),
    Case("BatchNorm", lambda: mnn.BatchNorm(4), rows(4)),
    Case("LayerNorm", lambda: mnn.LayerNorm(4), rows(4)),
    Case("SumPooling", mnn.SumPooling, tensors(3, 4)),
    Case("AvgPooling", mnn.AvgPooling, tensors(3, 4)),
    Case("MaxPooling", mnn.MaxPooling, tensors(3, 4)),
    Case("FM", mnn.FM, rows(4, 3)),
    Case("BiInteraction", mnn.BiInteraction, rows(4, 3)),
    Case("InnerProduct", mnn.InnerProduct, rows(4, 3)),
    Case("FieldWeightedFM", lambda: mnn.FieldWeightedFM(4), rows(4, 3)),
    Case("AFM", lambda: mnn.AFM(3, 5), rows(4, 3)),
    Case("GroupInt", lambda: mnn.GroupInt("dot"), two_lists(2, 3, 4)),
    Case("GroupInt with attention", lambda: mnn.GroupInt(attention_units=[3, 1], dim=4), two_lists(2, 3, 4)),
    Case("AllInt", lambda: mnn.AllInt(4, 2), rows(4, 3)),
    Case("CDot", lambda: mnn.CDot(4, 3, project_dim=2, units=[5]), rows(4, 3)),
    Case("CAN", lambda: mnn.CAN(2, activation="tanh"), two((3,), (24,))),
    Case("DCN vector", lambda: mnn.DCN(5, 2, kind="vector"), rows(5)),
    Case("DCN matrix", lambda: mnn.DCN(5, 2), rows(5)),
    Case("DCN low rank", lambda: mnn.DCN(5, 2, kind="low_rank", rank=2), rows(5)),
    Case("DCN mixed", lambda: mnn.DCN(5, 2, kind="mixed", rank=2, num_experts=3), rows(5)),
    Case("CIN", lambda: mnn.CIN(4, [3, 2], activation="tanh"), rows(4, 3)),
    Case("AutoInt", lambda: mnn.AutoInt(2), rows(4, 3)),
    Case("AutoInt with heads", lambda: mnn.AutoInt(2, dim=4, num_heads=2), rows(3, 4)),
    Case("SeNet", lambda: mnn.SeNet(4, 2), rows(4, 3)),
    Case("iRazor", lambda: mnn.iRazor(4, [0, 1, 3], feature_weight=[1.0] * 4), rows(4, 3)),
    Case("AttentionPooling", lambda: mnn.AttentionPooling(6, 3), sequence(4, 6)),
    Case("MultiHeadAttention", lambda: mnn.MultiHeadAttention(6, 2), cross_attention),
    Case("MultiHeadAttention, self", lambda: mnn.MultiHeadAttention(6, 2), self_attention),
    Case("MultiHeadAttention, causal", lambda: mnn.MultiHeadAttention(6, 3, is_causal=True), self_attention),
    Case("DIN", lambda: mnn.DIN(3, [4, 1], activations="tanh"), history(3, 4, 3)),
    Case("DIEN", lambda: mnn.DIEN(3, 4, att_type="AUGRU"), history(4, 4, 3)),
    Case("DMR_U2I", lambda: mnn.DMR_U2I(3, 4, max_length=6, cmp_dim=2), history(3, 4, 4)),
    Case("AGRUCell", lambda: mnn.AGRUCell(3, 4), two((3,), (4,))),
    Case("ExpertGate", lambda: mnn.ExpertGate(4, 3, 2), rows(4)),
    Case("MMoE", lambda: mnn.MMoE(4, [3, 2], num_tasks=2, num_experts=3), rows(4)),
    Case("MMoE, top k", lambda: mnn.MMoE(4, [[3, 2], [2]], num_tasks=2, gate={"gate_type": "topk"}), rows(4)),
    Case("SNR", lambda: mnn.SNR((2, 3), (3, 2)), tensors(2, 3)),
    Case("HardConcrete", lambda: mnn.HardConcrete(5), lambda _: ()),
]


def flat_tensors(result: object) -> list[Tensor]:
    """The tensors of a layer's result: one, or a list of them."""
    if isinstance(result, Tensor):
        return [result]
    assert isinstance(result, list)
    return [tensor for each in result for tensor in flat_tensors(each)]
