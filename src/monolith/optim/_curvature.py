"""Shampoo's matrices: the statistics of gradients, and the preconditioners made of them.

All functions take the states of parameters and change them in place. Small parameters of one shape are stacked and
worked on by one call; the states hold views of the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from monolith.optim import _foreach as foreach
from monolith.optim._dense_optimizer import Group, arithmetic_dtype
from monolith.optim.preconditioner import grams, inverse_roots, multiply_axis, precondition_axis, written_out

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from torch import Tensor

State: TypeAlias = dict[str, Any]

_STACKED_SIZE = 64
"""Axes up to this size are stacked: beyond it, stacking their matrices costs more than the calls it saves."""
_STACKED_ELEMENTS = 4096


def initial_state(param: Tensor, group: Group) -> State:
    """Returns a state without statistics, whose preconditioners are 0."""
    kept = group["eigen_head"] + group["eigen_tail"]
    # Without an axis there is nothing to wait for: the preconditioned gradient is the gradient.
    state: State = {"pending": 0, "kept": 0 if param.ndim == 0 else None}
    for axis, size in enumerate(param.shape):
        kept_here = min(size, kept)
        shapes = {"s": (size, size), "g": (size, size), "pvec": (size, kept_here), "pval": (kept_here,), "o": ()}
        for name, shape in shapes.items():
            state[f"{name}{axis}"] = param.new_zeros(shape, dtype=arithmetic_dtype(param))
    return state


def update_statistics(grads: Sequence[Tensor], states: Sequence[State], group: Group) -> None:
    """Replaces ``g`` by the statistics of these gradients, and adds them to ``s``."""
    settle(states, group)
    for stack in _stacks(grads, states):
        for axis in range(stack.num_axes):
            stack.store(f"g{axis}", grams(stack.grads, axis))
    for state in states:
        state["pending"] = 1
    settle(states, group)


def settle(states: Sequence[State], group: Group) -> None:
    """Adds ``g`` to ``s`` as often as is pending.

    ``g`` stays the same for `tau_2` steps, and the sums of all axes are far larger than a bias: adding it many times
    in one pass gives the same sums for a fraction of the passes over memory.
    """
    beta_2 = group["beta_2"]
    for times, own in _grouped(states, lambda state: state["pending"]):
        axes = [(state, axis) for state in own if times for axis in range(state["d"].ndim)]
        if not axes:
            continue
        totals, lasts = ([state[f"{name}{axis}"] for state, axis in axes] for name in "sg")
        if beta_2 < 1.0 - 1e-10:
            foreach.lerp_(totals, lasts, 1 - beta_2**times)
        else:
            foreach.add_(totals, lasts, alpha=times)
    for state in states:
        state["pending"] = 0


def update_preconditioners(states: Sequence[State], group: Group) -> None:
    """Computes the preconditioners of the statistics."""
    settle(states, group)
    kept = (group["eigen_head"], group["eigen_tail"])
    for stack in _stacks([state["d"] for state in states], states):
        for axis in range(stack.num_axes):
            totals = stack.stacked(f"s{axis}")
            roots = inverse_roots(totals, 2 * stack.num_axes, kept, group["damping_epsilon"])
            for name, values in zip(("pvec", "pval", "o"), roots, strict=True):
                stack.store(f"{name}{axis}", values)
            if _is_written_out(size=totals.shape[1], kept=sum(kept)):
                stack.store(f"p{axis}", written_out(roots))
            else:
                stack.drop(f"p{axis}")
    for state in states:
        state["kept"] = sum(kept)


def preconditioned(grads: Sequence[Tensor], states: Sequence[State]) -> list[Tensor]:
    """Returns every gradient with the preconditioners of all its axes applied."""
    results: dict[int, Tensor] = {}
    for stack in _stacks(grads, states):
        product = stack.grads
        for axis in range(stack.num_axes):
            if _is_written_out(size=product.shape[axis + 1], kept=stack.states[0]["kept"]):
                product = multiply_axis(product, axis, stack.stacked(f"p{axis}"))
            else:
                parts = (stack.stacked(f"pvec{axis}"), stack.stacked(f"pval{axis}"), stack.stacked(f"o{axis}"))
                product = precondition_axis(product, axis, parts)
        results.update(zip(stack.positions, product.unbind(), strict=True))
    return [results[position] for position in range(len(grads))]


@dataclass(frozen=True, slots=True)
class _Stack:
    """Gradients of one shape, [B, ...], with the states of their parameters."""

    positions: list[int]
    grads: Tensor
    states: list[State]

    @property
    def num_axes(self) -> int:
        return self.grads.ndim - 1

    def stacked(self, name: str) -> Tensor:
        return _stack([state[name] for state in self.states])

    def store(self, name: str, values: Tensor) -> None:
        for state, value in zip(self.states, values.unbind(), strict=True):
            state[name] = value

    def drop(self, name: str) -> None:
        for state in self.states:
            state.pop(name, None)


def _stacks(grads: Sequence[Tensor], states: Sequence[State]) -> Iterator[_Stack]:
    def key(position: int) -> Hashable:
        shape = grads[position].shape
        if shape.numel() > _STACKED_ELEMENTS or max(shape, default=0) > _STACKED_SIZE:
            return position
        return (shape, states[position]["kept"])

    for _, positions in _grouped(range(len(grads)), key):
        chosen = [states[position] for position in positions]
        yield _Stack(positions, _stack([grads[position] for position in positions]), chosen)


def _stack(tensors: list[Tensor]) -> Tensor:
    return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(tensors)


def _grouped(items: Sequence[Any], key: Callable[[Any], Hashable]) -> Iterator[tuple[Any, list[Any]]]:
    groups: dict[Hashable, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    yield from groups.items()


def _is_written_out(*, size: int, kept: int) -> bool:
    """Returns whether ``p`` is kept in addition to ``pvec``: one product with it costs less than two with ``pvec``."""
    return 2 * min(size, kept) > size
