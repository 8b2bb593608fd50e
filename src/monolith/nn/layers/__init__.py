"""Layers of recommender models: plain ``torch.nn.Module`` classes over dense tensors.

May import: torch and `monolith.nn._arguments`. Sizes in the docstrings: B rows of a batch, n features, k dims of an
embedding, T steps of a sequence. Start with `mlp.py`; `docs/how-to/layers.md` compares the layers.

Batches of no rows and sequences of no steps give zeros of the right shape, never NaN. A mask is True where a step
counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith._deprecated import former_names as _former_names
from monolith.nn.layers.activations import ACTIVATION_NAMES, Activation, activation_layer
from monolith.nn.layers.attention import AttentionPooling, MultiHeadAttention, masked_softmax
from monolith.nn.layers.cross import DCN
from monolith.nn.layers.dense import AddBias, BatchNorm, Dense, Initializer, KernelNorm, LayerNorm
from monolith.nn.layers.fid_counter import fid_counter
from monolith.nn.layers.gating import LHUCTower, SeNet, iRazor
from monolith.nn.layers.history import DIEN, DIN, DMR_U2I, AGRUCell, rnn_with_attention
from monolith.nn.layers.interactions import (
    AFM,
    CAN,
    CIN,
    FFM,
    FM,
    AllInt,
    AutoInt,
    BiInteraction,
    CDot,
    FieldWeightedFM,
    GroupInt,
    InnerProduct,
)
from monolith.nn.layers.logit_correction import LogitCorrection, correct_logits
from monolith.nn.layers.mlp import MLP, MLPConfig
from monolith.nn.layers.multitask import (
    SNR,
    BalancedLoss,
    ExpertGate,
    GradNorm,
    HardConcrete,
    HasAuxiliaryLoss,
    MMoE,
    auxiliary_loss,
)
from monolith.nn.layers.pooling import AvgPooling, MaxPooling, SumPooling, merge_tensor_list
from monolith.observe.feature_insight import feature_insight

__all__ = [
    "ACTIVATION_NAMES",
    "AFM",
    "AGRUCell",
    "Activation",
    "AddBias",
    "AllInt",
    "AttentionPooling",
    "AutoInt",
    "AvgPooling",
    "BalancedLoss",
    "BatchNorm",
    "BiInteraction",
    "CAN",
    "CDot",
    "CIN",
    "DCN",
    "DIEN",
    "DIN",
    "DMR_U2I",
    "Dense",
    "ExpertGate",
    "FFM",
    "FM",
    "FieldWeightedFM",
    "GradNorm",
    "GroupInt",
    "HardConcrete",
    "HasAuxiliaryLoss",
    "Initializer",
    "InnerProduct",
    "KernelNorm",
    "LHUCTower",
    "LayerNorm",
    "LogitCorrection",
    "MLP",
    "MLPConfig",
    "MMoE",
    "MaxPooling",
    "MultiHeadAttention",
    "SNR",
    "SeNet",
    "SumPooling",
    "activation_layer",
    "auxiliary_loss",
    "correct_logits",
    "feature_insight",
    "fid_counter",
    "iRazor",
    "masked_softmax",
    "merge_tensor_list",
    "rnn_with_attention",
]

if not TYPE_CHECKING:  # type checkers accept only the current names
    __getattr__ = _former_names(__name__, {"MLPOptions": "MLPConfig"})
