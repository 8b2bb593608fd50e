"""Several tasks over shared weights: experts, routed sub-networks, balanced losses, losses that layers add."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, TypedDict, runtime_checkable

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
        self.experts = nn.ModuleList(MLP(input_dim, units, **options) for units in dims)
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
        for index, subnet in enumerate(inputs):
            require_shape("SNR", f"inputs[{index}]", subnet, (inputs[0].shape[0], self.in_dim))
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


class BalancedLoss(NamedTuple):
    """Two losses; add both to the loss that is minimised."""

    norm_loss: Tensor
    """Trains the weights of the losses, and nothing else."""
    weighted_loss: Tensor
    """Trains the model, and not the weights of the losses."""


class GradNorm(nn.Module):
    """Weights for losses such that each pulls equally hard at what they share.

    ``w = softmax(v)``, v learned and starting at 0; ``g_i = length of dL_i / dshared`` (a constant);
    ``norm_loss = scale * sum over i of abs(w_i g_i - mean over j of w_j g_j)^power``, each difference divided by the
    mean plus epsilon if `is_relative`; ``weighted_loss = sum over i of w_i L_i`` (w a constant).

    Reference: Chen et al., GradNorm, arXiv:1711.02257.

    Args:
        loss_names: Names of the losses, in order.
        scale: Factor of the norm loss.
        power: Exponent of the differences.
        is_relative: Whether differences are relative to the mean.
        epsilon: Keeps a relative difference finite.
    """

    def __init__(
        self,
        loss_names: Sequence[str],
        *,
        scale: float = 1.0,
        power: float = 2.0,
        is_relative: bool = False,
        epsilon: float = 1e-6,
    ) -> None:
        super().__init__()
        if not loss_names or len(set(loss_names)) != len(loss_names):
            raise ValueError(f"GradNorm: loss_names must be distinct and at least one, got {list(loss_names)}")
        if power < 1:
            raise ValueError(f"GradNorm: power must be >= 1, got {power!r}")
        self.loss_names = list(loss_names)
        self.scale = scale
        self.power = power
        self.is_relative = is_relative
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.zeros(len(loss_names)))

    def loss_weights(self) -> dict[str, float]:
        """Returns the current weight of each loss, by name."""
        return dict(zip(self.loss_names, torch.softmax(self.weight.detach(), dim=0).tolist(), strict=True))

    def forward(self, losses: Sequence[Tensor], shared: Tensor | Sequence[Tensor]) -> BalancedLoss:
        """Returns both losses of the step.

        Args:
            losses: One scalar per name.
            shared: What all losses were computed from: activations or weights, one tensor or several. Without gradients
                (in evaluation), all lengths count as 0.
        """
        if len(losses) != len(self.loss_names):
            raise ValueError(f"GradNorm: expected {len(self.loss_names)} losses, got {len(losses)}")
        weights = torch.softmax(self.weight, dim=0)
        tensors = [shared] if isinstance(shared, Tensor) else list(shared)
        norms = torch.stack([_gradient_norm(loss, tensors) for loss in losses])
        weighted_norms = weights * norms
        mean = weighted_norms.mean()
        differences = (weighted_norms - mean).abs()
        if self.is_relative:
            differences = differences / (mean + self.epsilon)
        norm_loss = self.scale * differences.pow(self.power).sum()
        return BalancedLoss(norm_loss, (weights.detach() * torch.stack(list(losses))).sum())


def _gradient_norm(loss: Tensor, shared: list[Tensor]) -> Tensor:
    if loss.ndim != 0:
        raise ValueError(f"GradNorm: a loss must be a scalar, got shape {list(loss.shape)}")
    if not loss.requires_grad:
        return loss.new_zeros(())
    gradients: Sequence[Tensor | None] = torch.autograd.grad(loss, shared, retain_graph=True, allow_unused=True)
    squares = [loss.new_zeros(()) if gradient is None else gradient.square().sum() for gradient in gradients]
    return torch.stack(squares).sum().sqrt().detach()


@runtime_checkable
class HasAuxiliaryLoss(Protocol):
    """A layer with a loss of its own: `MMoE` with top-k gates, `SNR`, `iRazor`, and yours."""

    def auxiliary_loss(self) -> Tensor:
        """Returns the loss, a scalar, of the current weights and, where it depends on it, the last batch."""
        ...


def auxiliary_loss(module: nn.Module) -> Tensor:
    """Returns the sum of the losses of all layers inside `module`; 0 without any. Call it after the forward pass.

    >>> float(auxiliary_loss(nn.Linear(2, 2)))
    0.0
    """
    losses = [layer.auxiliary_loss() for layer in module.modules() if isinstance(layer, HasAuxiliaryLoss)]
    return torch.stack(losses).sum() if losses else torch.zeros(())
