"""Many tasks over shared experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from monolith.nn._arguments import require_choice, require_last_dim, require_positive, require_shape
from monolith.nn.layers.mlp import MLP

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from monolith.nn.layers.mlp import MLPConfig

GateType: TypeAlias = Literal["softmax", "topk", "noise_topk"]


class ExpertGateConfig(TypedDict, total=False):
    """Options of the gates of `MMoE`; see `ExpertGate`."""

    input_dim: int
    gate_type: GateType
    top_k: int


class ExpertGate(nn.Module):
    """Which experts a task listens to, for one example: ``[B, experts, tasks]``, summing to 1 over experts.

    ``g = softmax over experts of x W``. "topk" keeps the k largest, and what equals the k-th, and divides them by their
    sum; W starts at 0, where all are equal and all are kept, so that no expert starts out switched off. "noise_topk"
    adds ``N(0, 1) * softplus(x W_n)`` to the logits first, in training only.

    Args:
        input_dim: Size of x.
        num_experts: Number of experts.
        num_tasks: Number of tasks.
        gate_type: "softmax", "topk" or "noise_topk".
        top_k: k.
    """

    def __init__(
        self, input_dim: int, num_experts: int, num_tasks: int, *, gate_type: GateType = "softmax", top_k: int = 1
    ) -> None:
        super().__init__()
        require_positive("MMoE", input_dim=input_dim, num_experts=num_experts, num_tasks=num_tasks, top_k=top_k)
        require_choice("MMoE", "gate_type", gate_type, ("softmax", "topk", "noise_topk"))
        if top_k > num_experts:
            raise ValueError(f"MMoE: top_k must be at most the {num_experts} experts, got {top_k}")
        self.input_dim = input_dim
        self.shape = (num_tasks, num_experts)
        self.gate_type = gate_type
        self.top_k = top_k
        self.weight = nn.Parameter(torch.zeros(input_dim, num_tasks * num_experts))
        self.noise: nn.Parameter | None = None
        if gate_type == "noise_topk":
            self.noise = nn.Parameter(nn.init.xavier_normal_(torch.empty(input_dim, num_tasks * num_experts)))

    def forward(self, x: Tensor) -> Tensor:
        """Returns the gates ``[B, experts, tasks]`` for `x` ``[B, input_dim]``."""
        require_shape("MMoE", "gate_input", x, ("B", self.input_dim))
        logits = x @ self.weight
        if self.noise is not None and self.training:
            logits = logits + torch.randn_like(logits) * functional.softplus(x @ self.noise)
        gates = torch.softmax(logits.reshape(-1, *self.shape), dim=2)
        if self.gate_type != "softmax":
            smallest_kept = gates.topk(self.top_k, dim=2).values[..., -1:]
            gates = gates.masked_fill(gates < smallest_kept, 0.0)
            gates = gates / gates.sum(dim=2, keepdim=True)
        return gates.transpose(1, 2)


class MMoE(nn.Module):
    """Multi-gate mixture of experts: one output per task.

    ``y_t = sum over experts e of g_(e,t) MLP_e(x)`` with the gates of `ExpertGate`. With top-k gates, `auxiliary_loss`
    is ``sum over tasks of variance / mean^2`` of the experts' importance (the sum of an expert's gates over the batch),
    which keeps experts in use; it is that of the last forward pass in training mode.

    Reference: Ma et al., MMoE, KDD 2018; top-k gates: Shazeer et al., arXiv:1701.06538.

    Args:
        input_dim: Size of the experts' input.
        expert_dims: Units of an expert's layers: one list for all, or one list per expert that end alike.
        num_tasks: Number of outputs.
        num_experts: Number of experts; optional where `expert_dims` has one list per expert.
        gate: Options of `ExpertGate`; ``input_dim`` where the gates see something else than the experts.
        options: `MLP` options of the experts.
    """

    def __init__(
        self,
        input_dim: int,
        expert_dims: Sequence[int] | Sequence[Sequence[int]],
        *,
        num_tasks: int,
        num_experts: int | None = None,
        gate: ExpertGateConfig | None = None,
        **options: Unpack[MLPConfig],
    ) -> None:
        super().__init__()
        dims = _dims_per_expert(expert_dims, num_experts)
        self.input_dim = input_dim
        self.output_dim = dims[0][-1]
        self.experts = nn.ModuleList(MLP(input_dim, each, **options) for each in dims)
        gate_options: ExpertGateConfig = {"input_dim": input_dim, **(gate or {})}
        self.gate = ExpertGate(num_experts=len(dims), num_tasks=num_tasks, **gate_options)
        self._importance_loss: Tensor | None = None

    def forward(self, x: Tensor, gate_input: Tensor | None = None) -> list[Tensor]:
        """Returns one ``[B, output_dim]`` per task for `x` ``[B, input_dim]``; gates see `gate_input` (default `x`)."""
        require_last_dim("MMoE", "input", x, self.input_dim)
        gates: Tensor = self.gate(x if gate_input is None else gate_input)
        experts = torch.stack([expert(x) for expert in self.experts], dim=2)
        if self.training and self.gate.gate_type != "softmax":
            self._importance_loss = _squared_variation(gates.sum(dim=0)).sum()
        return list((experts @ gates).unbind(dim=2))

    def auxiliary_loss(self) -> Tensor:
        """Returns how unequally the experts were used in the last training batch; 0 for softmax gates."""
        return self.gate.weight.new_zeros(()) if self._importance_loss is None else self._importance_loss

    def __getstate__(self) -> dict[str, Any]:
        # A copy has had no batch; and the graph of a batch cannot be copied.
        return {**self.__dict__, "_importance_loss": None}


def _squared_variation(importance: Tensor) -> Tensor:
    mean = importance.mean(dim=0)
    squared = mean.square()
    variance = importance.var(dim=0, correction=0)
    return variance / torch.where(squared > 0, squared, torch.ones_like(squared))


def _dims_per_expert(expert_dims: Sequence[int] | Sequence[Sequence[int]], num_experts: int | None) -> list[list[int]]:
    nested = [list(dims) for dims in expert_dims if not isinstance(dims, int)]
    if nested and len(nested) == len(expert_dims):
        if num_experts not in {None, len(nested)}:
            raise ValueError(f"MMoE: expert_dims has {len(nested)} lists, so num_experts cannot be {num_experts}")
        if len({dims[-1] if dims else None for dims in nested}) != 1:
            raise ValueError(f"MMoE: all experts must end in one size, got expert_dims {nested}")
        return nested
    flat = [dim for dim in expert_dims if isinstance(dim, int)]
    if nested or not flat:
        raise ValueError(f"MMoE: expert_dims must be sizes or lists of sizes, got {expert_dims!r}")
    if num_experts is None:
        raise ValueError("MMoE: num_experts is needed unless expert_dims has one list per expert")
    require_positive("MMoE", num_experts=num_experts)
    return [flat] * num_experts
