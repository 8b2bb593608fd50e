"""Cross networks: feature crosses of bounded degree, one degree per layer."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from monolith.nn._arguments import require_between, require_choice, require_last_dim, require_positive

CrossKind: TypeAlias = Literal["vector", "matrix", "low_rank", "mixed"]
_KINDS = ("vector", "matrix", "low_rank", "mixed")


class DCN(nn.Module):
    """The cross network of Deep & Cross, versions 1 and 2.

    With ``x_0`` the input ``[..., d]`` and * element by element, layer l computes x_{l+1} as

    | kind | Formula | Weights per layer |
    |---|---|---|
    | ``vector`` (DCN, arXiv:1708.05123) | ``x_0 (x_l . w) + b + x_l`` | 2 d |
    | ``matrix`` (DCN-v2, arXiv:2008.13535) | ``x_0 * (x_l W + b) + x_l`` | d^2 + d |
    | ``low_rank`` (DCN-v2) | ``x_0 * (x_l V U^T + b) + x_l`` | 2 d r + d |
    | ``mixed`` (DCN-v2) | ``sum_e g_e x_0 * (tanh(tanh(x_l V_e) C_e) U_e^T + b) + x_l`` | e (2 d r + r^2 + d) + d |

    where ``g = softmax over experts of x_l G``. Dropout, if any, follows each layer.

    Args:
        input_dim: d.
        num_layers: The degree of the crosses, minus 1.
        kind: See the table.
        rank: r, for "low_rank" and "mixed".
        num_experts: e, for "mixed".
        dropout: Share of the elements that a layer drops in training.

    >>> DCN(8, 2, kind="mixed", rank=2, num_experts=4)(torch.zeros(3, 8)).shape
    torch.Size([3, 8])
    """

    def __init__(
        self,
        input_dim: int,
        num_layers: int = 1,
        *,
        kind: CrossKind = "matrix",
        rank: int | None = None,
        num_experts: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        require_positive("DCN", input_dim=input_dim, num_layers=num_layers, num_experts=num_experts)
        require_choice("DCN", "kind", kind, _KINDS)
        require_between("DCN", 0.0, 1.0, dropout=dropout)
        if (rank is None) == (kind in {"low_rank", "mixed"}):
            raise ValueError(f"DCN: rank belongs to kinds 'low_rank' and 'mixed', got rank={rank!r} with kind={kind!r}")
        if num_experts != 1 and kind != "mixed":
            raise ValueError(f"DCN: num_experts belongs to kind 'mixed', got {num_experts} with kind={kind!r}")
        rank = 1 if rank is None else rank
        require_positive("DCN", rank=rank)
        self.input_dim = input_dim
        self.kind = kind
        self.layers = nn.ModuleList(_cross_layer(kind, input_dim, rank, num_experts) for _ in range(num_layers))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the crosses, shape of `x` ``[..., input_dim]``."""
        require_last_dim("DCN", "input", x, self.input_dim)
        crossed = x
        for layer in self.layers:
            crossed = self.dropout(layer(x, crossed))
        return crossed


def _cross_layer(kind: CrossKind, dim: int, rank: int, num_experts: int) -> nn.Module:
    if kind == "vector":
        return _VectorCross(dim)
    if kind == "matrix":
        return _MatrixCross(dim)
    if kind == "low_rank":
        return _LowRankCross(dim, rank)
    return _MixedCross(dim, rank, num_experts)


def _weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(nn.init.xavier_normal_(torch.empty(*shape)))


class _VectorCross(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = _weight(dim, 1)
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x0: Tensor, x: Tensor) -> Tensor:
        return x0 * (x @ self.weight) + self.bias + x


class _MatrixCross(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = _weight(dim, dim)
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x0: Tensor, x: Tensor) -> Tensor:
        return x0 * functional.linear(x, self.weight.T, self.bias) + x


class _LowRankCross(nn.Module):
    def __init__(self, dim: int, rank: int) -> None:
        super().__init__()
        self.v = _weight(dim, rank)
        self.u = _weight(dim, rank)
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x0: Tensor, x: Tensor) -> Tensor:
        return x0 * functional.linear(x @ self.v, self.u, self.bias) + x


class _MixedCross(nn.Module):
    def __init__(self, dim: int, rank: int, num_experts: int) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.stack([_weight(dim, rank).detach() for _ in range(num_experts)]))
        self.c = nn.Parameter(torch.stack([_weight(rank, rank).detach() for _ in range(num_experts)]))
        self.u = nn.Parameter(torch.stack([_weight(dim, rank).detach() for _ in range(num_experts)]))
        self.gate = _weight(dim, num_experts)
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x0: Tensor, x: Tensor) -> Tensor:
        gates = torch.softmax(x @ self.gate, dim=-1)
        inner = torch.tanh(torch.einsum("...d,edr->...er", x, self.v))
        inner = torch.tanh(torch.einsum("...er,ers->...es", inner, self.c))
        # The gates sum to 1, so the bias may be added once, after the experts are mixed.
        mixed = torch.einsum("...e,...es,eds->...d", gates, inner, self.u)
        return x0 * (mixed + self.bias) + x
