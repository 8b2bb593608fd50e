"""A torch optimizer as its name and plain options, from which a server builds its own. Nothing is unpickled.

Learning rates are not included: they come with every push, from the schedule of the worker that pushes.
"""

from __future__ import annotations

import importlib
import inspect
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.optim import Optimizer

from monolith import optim
from monolith.errors import InvalidArgumentError, PermissionDeniedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import nn

_ROOMS = {"torch.optim": torch.optim, "monolith.optim": optim}
"""Modules whose optimizers every server has."""
_ELEMENTWISE_OF_TORCH = frozenset(
    {
        torch.optim.ASGD,
        torch.optim.Adadelta,
        torch.optim.Adagrad,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.Adamax,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.RMSprop,
        torch.optim.Rprop,
        torch.optim.SGD,
    }
)
"""Optimizers that update every element from its own gradient and state only, so that a piece of a parameter is updated
as in the full parameter. Other classes declare it by ``is_elementwise = True``."""
_RATE = "lr"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """One parameter group."""

    params: tuple[str, ...]
    """Names of its parameters, in order."""
    options: Mapping[str, Any]
    """Options of the update rule, without the learning rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSpec:
    """Class, constructor options and parameter groups of an optimizer.

    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> spec = OptimizerSpec.of(torch.optim.SGD([weight], lr=0.1, momentum=0.9), {id(weight): "weight"})
    >>> spec.kind, spec.groups[0].params, spec.groups[0].options["momentum"]
    ('torch.optim.SGD', ('weight',), 0.9)
    >>> OptimizerSpec.from_dict(spec.to_dict()) == spec
    True
    """

    kind: str
    """``torch.optim.Adam``, ``monolith.optim.Shampoo``, or ``module:Class`` of a module passed to the servers."""
    options: Mapping[str, Any]
    """Keyword arguments of the constructor."""
    groups: tuple[GroupSpec, ...]

    @classmethod
    def of(cls, optimizer: Optimizer, names: Mapping[int, str]) -> Self:
        """Describes a live optimizer; skips parameters that are not in `names` (by id).

        Raises:
            InvalidArgumentError: a server cannot run this optimizer; gives the reason.
        """
        kind = _kind_of(type(optimizer))
        _require_plain_steps(optimizer, kind)
        keys = optimizer.defaults.keys() - group_state_keys(optimizer)
        groups = [
            GroupSpec(
                params=tuple(names[id(parameter)] for parameter in group["params"] if id(parameter) in names),
                options=_plain_options(kind, {key: group[key] for key in sorted(keys) if key in group}),
            )
            for group in optimizer.param_groups
        ]
        known = inspect.signature(type(optimizer)).parameters
        made_with = {key: value for key, value in optimizer.defaults.items() if key in known}
        return cls(kind=kind, options=_plain_options(kind, made_with), groups=tuple(groups))

    def make(self, parameters: Mapping[str, nn.Parameter], *, modules: Iterable[str] = ()) -> Optimizer:
        """Builds an optimizer for the given ones of its parameters.

        Args:
            parameters: Parameters by name.
            modules: Modules that a class may come from, in addition to those of torch and monolith.

        Raises:
            InvalidArgumentError: there is no such class, or it rejects its options.
            PermissionDeniedError: its module is not in `modules`.
        """
        kind = self._class(frozenset(modules))
        groups: list[dict[str, Any]] = [
            {
                "params": [parameters[name] for name in group.params if name in parameters],
                **group.options,
                _RATE: 0.0,  # replaced with every push
            }
            for group in self.groups
        ]
        try:
            return kind(groups, **self.options)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"optimizer {self.kind}: it cannot be made here: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values."""
        groups = [{"params": list(group.params), "options": dict(group.options)} for group in self.groups]
        return {"kind": self.kind, "options": dict(self.options), "groups": groups}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Reads the result of `to_dict`, also after JSON, which turns tuples into lists.

        Raises:
            InvalidArgumentError: the value is something else.
        """
        try:
            kind = str(values["kind"])
            groups = tuple(
                GroupSpec(params=tuple(map(str, group["params"])), options=_plain_options(kind, dict(group["options"])))
                for group in values["groups"]
            )
            return cls(kind=kind, options=_plain_options(kind, dict(values["options"])), groups=groups)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidArgumentError(f"optimizer: not a description of one: {error!r}") from error

    def _class(self, modules: frozenset[str]) -> type[Optimizer]:
        module, _, name = self.kind.rpartition(":")
        if not module:
            room, _, name = self.kind.rpartition(".")
            kind = getattr(_ROOMS.get(room), name, None)
        elif module in modules:
            kind = getattr(importlib.import_module(module), name, None)
        else:
            raise PermissionDeniedError(
                f"optimizer {self.kind!r}: this server makes those of torch.optim, monolith.optim and of the modules it"
                f" was started with, which are {sorted(modules) or 'none'}; start it with module {module!r}"
            )
        if not (isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer):
            raise InvalidArgumentError(
                f"optimizer {self.kind!r}: there is no such class; expected one of torch.optim or monolith.optim, or"
                " module:Class"
            )
        return kind


def is_elementwise(kind: type[Optimizer]) -> bool:
    """Returns whether a piece of a parameter is updated as in the full parameter; False for undeclared classes."""
    if kind in _ELEMENTWISE_OF_TORCH:
        return True
    return bool(getattr(kind, "is_elementwise", False))


def group_state_keys(optimizer: Optimizer) -> frozenset[str]:
    """Returns the group keys that the update rule itself writes: they are state, not options."""
    return getattr(type(optimizer), "group_state", frozenset())


def live_rates(optimizer: Optimizer, spec: OptimizerSpec) -> list[dict[str, Any]]:
    """Returns the current rate of every group, and the options changed since the spec was made.

    Raises:
        InvalidArgumentError: a rate is no finite number.
    """
    ask = getattr(optimizer, "ask_learning_rates", None)
    if ask is not None:
        ask()
    rates = []
    for group, spec_group in zip(optimizer.param_groups, spec.groups, strict=True):
        rate = float(group[_RATE])
        if not math.isfinite(rate):
            raise InvalidArgumentError(f"optimizer {spec.kind}: a learning rate must be a finite number, got {rate!r}")
        changed = {key: group[key] for key, value in spec_group.options.items() if group[key] != value}
        rates.append({**_plain_options(spec.kind, changed), _RATE: rate})
    return rates


def import_modules(names: Sequence[str]) -> None:
    """Imports the modules that a server is started with, so that a wrong name fails at the start.

    Raises:
        InvalidArgumentError: a module cannot be imported.
    """
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise InvalidArgumentError(f"module {name!r}: it cannot be imported: {error}") from error


def _kind_of(kind: type[Optimizer]) -> str:
    for room, module in _ROOMS.items():
        if getattr(module, kind.__name__, None) is kind:
            return f"{room}.{kind.__name__}"
    if "." in kind.__qualname__ or kind.__module__ == "__main__":
        raise InvalidArgumentError(
            f"optimizer {kind.__qualname__}: servers make optimizers by module and name, and this class is no name of a"
            " module that they can import; put it at the top of a module, and start the servers with that module"
        )
    return f"{kind.__module__}:{kind.__name__}"


def _require_plain_steps(optimizer: Optimizer, kind: str) -> None:
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise InvalidArgumentError(
            f"optimizer {kind}: its step evaluates the model again (closure), which a server cannot; take another one"
        )
    if kind == f"torch.optim.{torch.optim.SparseAdam.__name__}":
        raise InvalidArgumentError(f"optimizer {kind}: it takes sparse gradients only; take torch.optim.Adam")
    # torch stores the hooks of register_step_pre_hook and register_step_post_hook under these names.
    if getattr(optimizer, "_optimizer_step_pre_hooks", None) or getattr(optimizer, "_optimizer_step_post_hooks", None):
        raise InvalidArgumentError(f"optimizer {kind}: functions are hooked to its step, and a server has none of them")


def _plain_options(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _plain(value, f"optimizer {kind}: option {key!r}") for key, value in options.items() if key != _RATE}


def _plain(value: Any, subject: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return tuple(_plain(item, subject) for item in value)
    shown = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
    raise InvalidArgumentError(
        f"{subject} must be a plain value (number, text, True, False, None, or some of them in a tuple) to travel to a"
        f" server, got {shown}"
    )
