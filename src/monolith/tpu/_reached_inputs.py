"""Which inputs of a traced function its outputs depend on; torch shows it by leaving a gradient None."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["reached_inputs"]


def reached_inputs(traced: Any, outputs: Iterable[int]) -> list[bool]:
    """Returns for each input, in order, whether one of the given outputs depends on it.

    Args:
        traced: A closed jaxpr, as ``jax.make_jaxpr`` makes it.
        outputs: Numbers of the outputs that count.
    """
    jaxpr = traced.jaxpr
    needed = {jaxpr.outvars[number] for number in outputs if _is_variable(jaxpr.outvars[number])}
    for equation in reversed(jaxpr.eqns):
        if any(variable in needed for variable in equation.outvars):
            needed.update(variable for variable in equation.invars if _is_variable(variable))
    return [variable in needed for variable in jaxpr.invars]


def _is_variable(atom: Any) -> bool:
    """Returns whether an atom is a variable; it may also be a literal."""
    return not hasattr(atom, "val")
