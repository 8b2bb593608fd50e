"""Sub-networks of several tasks, with learned connections between them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, TypedDict

import torch
from torch import Tensor, nn

from monolith.nn._arguments import require_choice, require_positive, require_shape

if TYPE_CHECKING:
    from collections.abc import Sequence


class _ClampStraightThrough(torch.autograd.Function):
    """Clamp to [0, 1] whose gradient passes as if nothing had been clamped."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:  # noqa: ARG004 - the signature of autograd
        return x.clamp(0.0, 1.0)

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:  # noqa: ARG004 - the signature of autograd
        return gradients[0]


class HardConcreteConfig(TypedDict, total=False):
    """Options of the gates of `SNR`; see `HardConcrete`."""

    beta: float
    zeta: float
    gamma: float
    is_straight_through: bool


class HardConcrete(nn.Module):
    """Gates in [0, 1] that can become exactly 0 or 1 and are learned.

    In training, with u uniform in (0, 1): ``s = sigmoid((ln u - ln(1 - u) + log_alpha) / beta)``; in evaluation
    ``s = sigmoid(log_alpha)``. The gate is ``clamp(s (zeta - gamma) + gamma, 0, 1)``. `l0_loss` is the expected number
    of gates that are not 0: ``sum of sigmoid(log_alpha - beta ln(-gamma / zeta))``. ``log_alpha`` starts at 0.

    Reference: Louizos et al., arXiv:1712.01312.

    Args:
        num_gates: Number of gates.
        beta: Temperature, > 0.
        zeta: Upper end before clamping, > 1.
        gamma: Lower end before clamping, < 0.
        is_straight_through: Whether the gradient passes the clamp.
    """

    def __init__(
        self,
        num_gates: int,
        *,
        beta: float = 0.5,
        zeta: float = 1.1,
        gamma: float = -0.1,
        is_straight_through: bool = False,
    ) -> None:
        super().__init__()
        require_positive("HardConcrete", num_gates=num_gates)
        if not (beta > 0 and zeta > 1 and gamma < 0):
            raise ValueError(f"HardConcrete: needs beta > 0, zeta > 1 and gamma < 0, got {beta}, {zeta} and {gamma}")
        self.beta, self.zeta, self.gamma = beta, zeta, gamma
        self.is_straight_through = is_straight_through
        self.log_alpha = nn.Parameter(torch.zeros(num_gates))

    def forward(self) -> Tensor:
        """Returns the gates ``[num_gates]``; a new draw for every call in training."""
        logits: Tensor = self.log_alpha
        if self.training:
            tiny = torch.finfo(logits.dtype).tiny
            u = torch.rand_like(logits).clamp(tiny, 1.0 - torch.finfo(logits.dtype).eps)
            logits = (torch.logit(u) + logits) / self.beta
        stretched = torch.sigmoid(logits) * (self.zeta - self.gamma) + self.gamma
        if self.is_straight_through:
            clamped: Tensor = _ClampStraightThrough.apply(stretched)  # type: ignore[no-untyped-call]
            return clamped
        return stretched.clamp(0.0, 1.0)

    def l0_loss(self) -> Tensor:
        """Returns the expected number of gates that are not 0."""
        return torch.sigmoid(self.log_alpha - self.beta * math.log(-self.gamma / self.zeta)).sum()


class SNR(nn.Module):
    """Sub-network routing: every output sub-network sees a gated combination of all input sub-networks.

    ``y_j = sum over i of z_ij x_i W_ij``, with gates z of `HardConcrete`; kind "aver" has no W (identity).
    `auxiliary_loss` is the expected number of open connections; weigh it to make the routing sparse.

    Reference: Ma et al., SNR, AAAI 2019.

    Args:
        in_subnets: Number of inputs and their size.
        out_subnets: Number of outputs and their size.
        kind: "trans" (weights) or "aver" (identity; sizes must agree).
        gates: Options of `HardConcrete`.
    """

    def __init__(
        self,
        in_subnets: tuple[int, int],
        out_subnets: tuple[int, int],
        *,
        kind: Literal["trans", "aver"] = "trans",
        gates: HardConcreteConfig | None = None,
    ) -> None:
        super().__init__()
        self.num_in, self.in_dim = in_subnets
        self.num_out, self.out_dim = out_subnets
        require_positive("SNR", num_in=self.num_in, in_dim=self.in_dim, num_out=self.num_out, out_dim=self.out_dim)
        require_choice("SNR", "kind", kind, ("trans", "aver"))
        if kind == "aver" and self.in_dim != self.out_dim:
            raise ValueError(
                f"SNR: kind 'aver' needs inputs and outputs of one size, got {self.in_dim} and {self.out_dim}"
            )
        self.kind = kind
        num_routes = self.num_in * self.num_out
        self.gates = HardConcrete(num_routes, **(gates or {}))
        self.weight: nn.Parameter | None = None
        if kind == "trans":
            blocks = [nn.init.xavier_uniform_(torch.empty(self.in_dim, self.out_dim)) for _ in range(num_routes)]
            self.weight = nn.Parameter(
                torch.stack(blocks).reshape(self.num_in, self.num_out, self.in_dim, self.out_dim)
            )

    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Returns one ``[B, out_dim]`` per output for `inputs`, one ``[B, in_dim]`` per input."""
        if len(inputs) != self.num_in:
            raise ValueError(f"SNR: expected {self.num_in} inputs, got {len(inputs)}")
        for index, each in enumerate(inputs):
            require_shape("SNR", f"inputs[{index}]", each, (inputs[0].shape[0], self.in_dim))
        z = self.gates().reshape(self.num_in, self.num_out)
        x = torch.stack(list(inputs), dim=1)
        if self.weight is None:
            routed = torch.einsum("bid,io->bod", x, z)
        else:
            routed = torch.einsum("bid,iode->boe", x, z[..., None, None] * self.weight)
        return list(routed.unbind(dim=1))

    def auxiliary_loss(self) -> Tensor:
        """Returns the expected number of open connections."""
        return self.gates.l0_loss()
