"""Shampoo: a gradient preconditioned along each of its axes, blended in after a warm-up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, Unpack

from monolith.optim import _curvature
from monolith.optim import _foreach as foreach
from monolith.optim._dense_optimizer import Bounds, DenseOptimizer, Group, LearningRate, ParameterBatch, zeros_like
from monolith.optim.clipping import lengths
from monolith.optim.schedules import current_global_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import Tensor
    from torch.optim.optimizer import ParamsT


class ShampooConfig(TypedDict, total=False):
    """The options of `Shampoo`, all by name."""

    beta_1: float
    """How much of both momenta stays per step, in [0, 1]; 0.9."""
    beta_2: float
    """How much of the statistics stays per step, in [0, 1]; 1.0 sums them up instead of averaging."""
    warmup: int
    """Steps by the diagonal rule alone; twice as many until the preconditioned rule is alone. 5000; may be 0."""
    tau_1: int
    """Steps between two computations of the preconditioners; 200."""
    tau_2: int
    """Steps between two computations of a gradient's statistics; 20."""
    eigen_head: int
    """How many of the smallest eigenvalues above the damping each preconditioner keeps; 100."""
    eigen_tail: int
    """How many of the largest eigenvalues each preconditioner keeps; 100."""
    damping_epsilon: float
    """The least eigenvalue; 1e-3."""


_DEFAULTS: ShampooConfig = {
    "beta_1": 0.9,
    "beta_2": 1.0,
    "warmup": 5000,
    "tau_1": 200,
    "tau_2": 20,
    "eigen_head": 100,
    "eigen_tail": 100,
    "damping_epsilon": 1e-3,
}


@dataclass(frozen=True, slots=True)
class _Phase:
    """The actions of one step."""

    updates_statistics: bool
    updates_preconditioners: bool
    blend: float
    """Share of the preconditioned rule in the move, 0 to 1."""


class Shampoo(DenseOptimizer):
    """Dense optimizer that preconditions a gradient along each of its axes.

    For a parameter with r axes, at step t, all per element unless a matrix is named::

        every tau_2 steps, per axis i:    g{i} <- products of the gradient's slices along axis i with each other
        every step, per axis i:           s{i} <- s{i} + g{i},  or beta_2 * s{i} + (1 - beta_2) * g{i} if beta_2 < 1
        every tau_1 steps after warm-up:  P{i} <- s{i}^(-1 / 2r) by `eigen_inverse_root`
        d  <- d + grad^2
        m  <- beta_1 * m  + (1 - beta_1) * grad / sqrt(d + 1e-30)
        pm <- beta_1 * pm + (1 - beta_1) * (grad with every P{i} applied)
        t <= warmup:  param <- param - learning_rate * m
        afterwards:   param <- param - learning_rate * ((1 - b) * m + b * |m| / (|pm| + 1e-10) * pm),
                      b = t / warmup - 1, within 0 and 1

    Until its first computation, a multiple of `tau_1` after the warm-up, a preconditioner is 0 and so is ``pm``: the
    share b of the move is then missing. With ``warmup=0`` that share is the complete move, so take a small `tau_1` too.

    State of a parameter: ``d``, ``m``, ``pm`` of its shape; per axis of size n ``s{i}`` and ``g{i}`` [n, n], and the
    parts of P{i}: ``pvec{i}`` [n, k], ``pval{i}`` [k] and the number ``o{i}``, with k = min(n, eigen_head +
    eigen_tail), and ``p{i}`` [n, n], P{i} itself, where that is cheaper to apply; ``pending``, how many times ``g{i}``
    is still to be taken into ``s{i}``; ``kept``, the eigen_head + eigen_tail that P{i} was computed with, None before.
    Mind that an axis of n takes memory for two or three matrices [n, n], even if the parameter is a bias.

    Steps are counted from 0: by `global_step` if given, else by the session that is open
    (`monolith.optim.schedules`), else by the optimizer itself (``group["step"]``, saved with its state).

    Args:
        params: Parameters or groups, as for every torch optimizer.
        learning_rate: A number, which schedulers may change, or a function without arguments.
        global_step: Returns the current step.
        options: See `ShampooConfig`; each may also stand in a group.
    """

    group_state = frozenset({"step"})
    _bounds: ClassVar[Mapping[str, Bounds]] = {
        "beta_1": Bounds(high=1.0),
        "beta_2": Bounds(high=1.0),
        "warmup": Bounds(whole=True),
        "tau_1": Bounds(low=1, whole=True),
        "tau_2": Bounds(low=1, whole=True),
        "eigen_head": Bounds(whole=True),
        "eigen_tail": Bounds(whole=True),
        "damping_epsilon": Bounds(low=1e-30),
    }

    def __init__(
        self,
        params: ParamsT,
        learning_rate: LearningRate = 0.03,
        *,
        global_step: Callable[[], int] | None = None,
        **options: Unpack[ShampooConfig],
    ) -> None:
        unknown = sorted(options.keys() - _DEFAULTS.keys())
        if unknown:
            raise TypeError(f"Shampoo: unknown option {unknown[0]!r}; known are {', '.join(_DEFAULTS)}")
        self.global_step = global_step
        merged: dict[str, Any] = {**_DEFAULTS, **options, "step": 0}
        super().__init__(params, learning_rate, merged)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "global_step": self.global_step}

    def _initial_state(self, param: Tensor, group: Group) -> dict[str, Any]:
        moments = {"d": zeros_like(param), "m": zeros_like(param), "pm": zeros_like(param)}
        return {**_curvature.initial_state(param, group), **moments}

    def _update_group(self, group: Group, batches: Iterable[ParameterBatch]) -> None:
        step = current_global_step() if self.global_step is None else self.global_step()
        if step is not None:
            Bounds(whole=True).check("Shampoo: the global step", step)
            group["step"] = step
        super()._update_group(group, batches)
        group["step"] += 1

    def _update(self, batch: ParameterBatch, group: Group) -> None:
        phase = _phase(group)
        if phase.updates_statistics:
            _curvature.update_statistics(batch.grads, batch.states, group)
        else:
            for state in batch.states:
                state["pending"] += 1
        if phase.updates_preconditioners:
            _curvature.update_preconditioners(batch.states, group)
        _move_diagonally(batch, group, phase)
        _move_preconditioned(batch, group, phase)


def _phase(group: Group) -> _Phase:
    step, warmup = group["step"], group["warmup"]
    warmed_up = step > warmup
    return _Phase(
        updates_statistics=step % group["tau_2"] == 0,
        updates_preconditioners=warmed_up and step % group["tau_1"] == 0,
        blend=min(step / warmup - 1, 1.0) if warmed_up and warmup > 0 else float(warmed_up),
    )


def _move_diagonally(batch: ParameterBatch, group: Group, phase: _Phase) -> None:
    ds, ms = batch.state("d"), batch.state("m")
    foreach.addcmul_(ds, batch.grads, batch.grads)
    roots = foreach.add(ds, 1e-30)
    foreach.sqrt_(roots)
    foreach.mul_(ms, group["beta_1"])
    foreach.addcdiv_(ms, batch.grads, roots, 1 - group["beta_1"])
    if phase.blend < 1:
        foreach.add_(batch.params, ms, alpha=-float(group["lr"]) * (1 - phase.blend))


def _move_preconditioned(batch: ParameterBatch, group: Group, phase: _Phase) -> None:
    """Makes the second half of the move, for parameters that have preconditioners; ``pm`` of others stays 0."""
    ready = [position for position, state in enumerate(batch.states) if state["kept"] is not None]
    if not ready:
        return
    states = [batch.states[position] for position in ready]
    ms, pms = [state["m"] for state in states], [state["pm"] for state in states]
    grads = _curvature.preconditioned([batch.grads[position] for position in ready], states)
    foreach.lerp_(pms, grads, 1 - group["beta_1"])
    if phase.blend > 0:
        scales = lengths(ms) / (lengths(pms) + 1e-10)
        params = [batch.params[position] for position in ready]
        foreach.addcmul_(params, pms, list(scales.unbind()), -float(group["lr"]) * phase.blend)
