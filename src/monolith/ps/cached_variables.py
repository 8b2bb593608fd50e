"""Cached variables: parameters that servers keep, of which a worker reads a copy that is refreshed beside its steps.

By the names that the original has. The copies are the worker's parameters: a step computes with what was assigned last,
gradients go to the servers, and `read` asks them for the value of now. A `Session` does the same for all of its dense
weights by ``DenseConfig(prefetch=True)``; these functions are for loops that fetch and assign by themselves.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from monolith.errors import InvalidArgumentError
from monolith.ps.dense_client import keeper_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "CACHED_VARIABLES",
    "CachedVariable",
    "CachedVariableAssociates",
    "CachedVariableMeta",
    "assign_all_cached_variables",
    "cached_value",
    "cached_variable_creator",
    "current_cached_variables",
    "fetch_all_cached_variables",
    "use_cached_variables",
]

CACHED_VARIABLES = "monolith_cached_variables"
"""Name of the collection of those that are cached."""

Creator: TypeAlias = "Callable[..., nn.Parameter]"


class CachedVariable:
    """A parameter that servers keep: the copy that steps compute with, and a way to ask for the value of now.

    Args:
        parameter: One of those that an open `DenseClient` keeps on servers.

    Raises:
        InvalidArgumentError: none does.
    """

    def __init__(self, parameter: nn.Parameter) -> None:
        client = keeper_of(parameter)
        if client is None:
            raise InvalidArgumentError(
                f"cached variable: expected a parameter that servers keep, got one of shape {tuple(parameter.shape)} of"
                " this process; give it to a DenseClient first"
            )
        self.name = next(name for name, each in client.parameters.items() if each is parameter)
        self.parameter = parameter
        self.client = client

    @property
    def value(self) -> Tensor:
        """The copy; gradients of what is computed from it are those of the parameter."""
        return cached_value(self.parameter, self.parameter.detach())

    def read(self) -> Tensor:
        """What the servers have now; the copy stays as it is."""
        return self.client.read(self.name)


@dataclass(frozen=True, slots=True)
class CachedVariableAssociates:
    """The two copies of a cached variable."""

    async_fetched_var: Tensor
    """What was fetched last."""
    async_cached_var: Tensor
    """What steps compute with."""


@dataclass(slots=True)
class CachedVariableMeta:
    """What is known of cached variables, by the id of their parameter."""

    var_id_to_assoc: dict[int, CachedVariableAssociates] = field(default_factory=dict)
    collections: dict[str, list[CachedVariable]] = field(default_factory=lambda: {CACHED_VARIABLES: []})
    """Name -> variables; the cached ones are in `CACHED_VARIABLES`."""

    @property
    def cached(self) -> list[CachedVariable]:
        """All that are cached."""
        return self.collections[CACHED_VARIABLES]


_DEFAULT = CachedVariableMeta()
_CURRENT: ContextVar[CachedVariableMeta] = ContextVar("monolith_cached_variables", default=_DEFAULT)


@contextmanager
def use_cached_variables(meta: CachedVariableMeta | None = None) -> Iterator[CachedVariableMeta]:
    """Inside, the functions of this module are about the variables of `meta`, as those of a graph; None: of a new one.

    Outside they are about variables of the process. It holds for this thread.
    """
    used = CachedVariableMeta() if meta is None else meta
    before = _CURRENT.set(used)
    try:
        yield used
    finally:
        _CURRENT.reset(before)


def current_cached_variables() -> CachedVariableMeta:
    """Those that the functions of this module are about now."""
    return _CURRENT.get()


class _CachedValue(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, var: Tensor, async_cached_var: Tensor) -> Tensor:  # noqa: ARG004 - torch's signature
        return async_cached_var.detach().clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # noqa: ARG004 - torch's signature
        return grads[0], None


def cached_value(var: Tensor, async_cached_var: Tensor) -> Tensor:
    """The value of the copy, with the gradient of the variable; the copy has none."""
    return cast("Tensor", _CachedValue.apply(var, async_cached_var))  # type: ignore[no-untyped-call]


def cached_variable_creator(next_creator: Creator, **kwargs: Any) -> nn.Parameter:
    """Makes a parameter by `next_creator`, and caches it if servers keep it; one of this process stays uncached.

    Args:
        next_creator: Makes it.
        kwargs: For `next_creator`.

    Raises:
        ValueError: what was made is no parameter, or it is cached already.
    """
    var = next_creator(**kwargs)
    if not isinstance(var, nn.Parameter):
        raise ValueError(  # noqa: TRY004 - the original's class
            "Only ResourceVariable is supported. Do you disable V2 behavior or use strategy?"
        )
    meta = current_cached_variables()
    if id(var) in meta.var_id_to_assoc:
        raise ValueError("The variable has already been cached. Consider about removing cache_device.")
    if keeper_of(var) is None:
        return var
    meta.cached.append(CachedVariable(var))
    meta.var_id_to_assoc[id(var)] = CachedVariableAssociates(
        async_fetched_var=var.detach().clone(), async_cached_var=var.detach()
    )
    return var


def fetch_all_cached_variables() -> None:
    """Brings what the servers have into the fetched copies; steps do not see it yet."""
    meta = current_cached_variables()
    for client in {id(each.client): each.client for each in meta.cached}.values():
        own = [each for each in meta.cached if each.client is client]
        values = client.read_all()
        for each in own:
            meta.var_id_to_assoc[id(each.parameter)].async_fetched_var.copy_(values[each.name])


def assign_all_cached_variables() -> None:
    """Lets steps see what was fetched last."""
    meta = current_cached_variables()
    with torch.no_grad():
        for each in meta.cached:
            each.parameter.copy_(meta.var_id_to_assoc[id(each.parameter)].async_fetched_var)
