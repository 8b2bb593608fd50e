"""Cached variables: parameters on servers, of which a worker reads a copy that is refreshed in the background.

The names are those of ByteDance Monolith. The copies are the worker's parameters: a step computes with the last
assigned values, gradients go to the servers, and `read` fetches the current value. A `Session` does the same for all of
its dense weights by ``DenseConfig(prefetch=True)``; these functions are for loops that fetch and assign by themselves.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from monolith.errors import InvalidArgumentError
from monolith.ps.dense.client import keeper_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CACHED_VARIABLES = "monolith_cached_variables"
"""Name of the collection of cached variables."""

Creator: TypeAlias = "Callable[..., nn.Parameter]"


class CachedVariable:
    """A parameter on servers: the copy that steps compute with, and access to the current value.

    Args:
        parameter: A parameter that an open `DenseClient` keeps on servers.

    Raises:
        InvalidArgumentError: no client keeps it.
    """

    def __init__(self, parameter: nn.Parameter) -> None:
        client = keeper_of(parameter)
        if client is None:
            raise InvalidArgumentError(
                f"cached variable: expected a parameter that servers keep, got one of shape {tuple(parameter.shape)} of"
                " this process; give it to a DenseClient first"
            )
        self.name = next(name for name, candidate in client.parameters.items() if candidate is parameter)
        self.parameter = parameter
        self.client = client

    @property
    def value(self) -> Tensor:
        """The copy; gradients of results computed from it go to the parameter."""
        return cached_value(self.parameter, self.parameter.detach())

    def read(self) -> Tensor:
        """Returns the current value on the servers; the copy stays unchanged."""
        return self.client.read(self.name)


@dataclass(frozen=True, slots=True)
class CachedVariableAssociates:
    """The two copies of a cached variable."""

    async_fetched_var: Tensor
    """The value fetched last."""
    async_cached_var: Tensor
    """The value that steps compute with."""


@dataclass(slots=True)
class CachedVariableMeta:
    """Registry of cached variables, by the id of their parameter."""

    var_id_to_assoc: dict[int, CachedVariableAssociates] = field(default_factory=dict)
    collections: dict[str, list[CachedVariable]] = field(default_factory=lambda: {CACHED_VARIABLES: []})
    """Name -> variables; the cached ones are in `CACHED_VARIABLES`."""

    @property
    def cached(self) -> list[CachedVariable]:
        """All cached variables."""
        return self.collections[CACHED_VARIABLES]


_DEFAULT = CachedVariableMeta()
_CURRENT: ContextVar[CachedVariableMeta] = ContextVar("monolith_cached_variables", default=_DEFAULT)


@contextmanager
def use_cached_variables(meta: CachedVariableMeta | None = None) -> Iterator[CachedVariableMeta]:
    """Makes the functions of this module use the variables of `meta`, like those of a graph; None: of a new registry.

    Outside they use the variables of the process. Applies to this thread.
    """
    used = CachedVariableMeta() if meta is None else meta
    before = _CURRENT.set(used)
    try:
        yield used
    finally:
        _CURRENT.reset(before)


def current_cached_variables() -> CachedVariableMeta:
    """Returns the registry that the functions of this module use now."""
    return _CURRENT.get()


class _CachedValue(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, var: Tensor, async_cached_var: Tensor) -> Tensor:  # noqa: ARG004 - torch's signature
        return async_cached_var.detach().clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # noqa: ARG004 - torch's signature
        return grads[0], None


def cached_value(var: Tensor, async_cached_var: Tensor) -> Tensor:
    """Returns the value of the copy, with the gradient of the variable; the copy gets none."""
    return cast("Tensor", _CachedValue.apply(var, async_cached_var))  # type: ignore[no-untyped-call]


def cached_variable_creator(next_creator: Creator, **kwargs: Any) -> nn.Parameter:
    """Creates a parameter by `next_creator`, and caches it if it is on servers; a local one stays uncached.

    Args:
        next_creator: Creates the parameter.
        kwargs: Arguments of `next_creator`.

    Raises:
        ValueError: the result is no parameter, or it is cached already.
    """
    var = next_creator(**kwargs)
    if not isinstance(var, nn.Parameter):
        raise ValueError(  # noqa: TRY004 - the class that upstream raises
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
    """Reads the current values of the servers into the fetched copies; steps do not see them yet."""
    meta = current_cached_variables()
    for client in {id(variable.client): variable.client for variable in meta.cached}.values():
        own = [variable for variable in meta.cached if variable.client is client]
        values = client.read_all()
        for variable in own:
            meta.var_id_to_assoc[id(variable.parameter)].async_fetched_var.copy_(values[variable.name])


def assign_all_cached_variables() -> None:
    """Copies the last fetched values into the parameters, for the next steps."""
    meta = current_cached_variables()
    with torch.no_grad():
        for variable in meta.cached:
            variable.parameter.copy_(meta.var_id_to_assoc[id(variable.parameter)].async_fetched_var)
