"""The base of the dense optimizers: options of groups, learning rates that are functions, work by lists, exact state.

A step gathers the parameters that have a gradient, group by group and by (device, dtype), and passes each list to the
rule of the subclass, which works on the complete list.

Precision: float64 parameters are updated in float64, all others in float32. Parameters of 16 bits or less keep float32
state; they are rounded once, at the end of the step.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from monolith.errors import InvalidArgumentError
from monolith.optim import _foreach as foreach

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

LearningRate: TypeAlias = float | Callable[[], float]
"""A number, or a function that is called before every step."""

Tensors: TypeAlias = list[Tensor] | tuple[Tensor, ...]

Group: TypeAlias = dict[str, Any]
"""A parameter group as torch keeps it: ``params``, ``lr`` and the options of the rule."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which numbers an option takes: ``low <= value <= high``, and finite."""

    low: float = 0.0
    high: float = math.inf
    whole: bool = False

    def check(self, subject: str, value: Any) -> None:
        """Checks that a value is a number within these bounds.

        Raises:
            TypeError: not a number, or not an integer where one is needed.
            ValueError: out of bounds.
        """
        kind = Integral if self.whole else Real
        if isinstance(value, bool) or not isinstance(value, kind):
            raise TypeError(f"{subject} must be {'an integer' if self.whole else 'a number'}, got {value!r}")
        if not (self.low <= float(value) <= self.high and math.isfinite(value)):
            upper = "" if math.isinf(self.high) else f" and <= {self.high:g}"
            raise ValueError(f"{subject} must be >= {self.low:g}{upper}, got {value!r}")


@dataclass(slots=True)
class ParameterBatch:
    """Parameters of one device and dtype with their gradients and states, position by position."""

    params: list[Tensor] = field(default_factory=list)
    """Tensors that the rule updates: the parameters, or float32 copies of shorter ones."""
    grads: list[Tensor] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)
    rounded: list[Tensor] = field(default_factory=list)
    """The parameters of which `params` are copies, if they are."""

    def state(self, name: str) -> list[Any]:
        """Returns the state `name` of every parameter."""
        return [state[name] for state in self.states]

    def append(self, param: Tensor, grad: Tensor, state: dict[str, Any]) -> None:
        """Adds a parameter, in the precision of its arithmetic."""
        dtype = arithmetic_dtype(param)
        if dtype is not param.dtype:
            self.rounded.append(param)
            param = param.to(dtype)
        self.params.append(param)
        self.grads.append(grad if grad.dtype is dtype else grad.to(dtype))
        self.states.append(state)


def arithmetic_dtype(param: Tensor) -> torch.dtype:
    """Returns the precision in which a parameter is updated and its state is kept."""
    return torch.float64 if param.dtype is torch.float64 else torch.float32


def zeros_like(param: Tensor) -> Tensor:
    """Returns state of the parameter's shape and strides, all 0."""
    return torch.zeros_like(param, dtype=arithmetic_dtype(param), memory_format=torch.preserve_format)


def decayed(batch: ParameterBatch, weight_decay: float) -> Tensors:
    """Returns ``grad + weight_decay * param``, with the parameter from before the step."""
    if weight_decay == 0:
        return batch.grads
    return foreach.add(batch.grads, batch.params, alpha=weight_decay)


class DenseOptimizer(Optimizer, ABC):
    """A rule for the parameters of a torch module, applied to lists of them.

    Args:
        params: Parameters, named parameters, or groups, as for every torch optimizer. A group may set any option, and
            its learning rate as ``lr`` or ``learning_rate``.
        learning_rate: A number, which torch's schedulers may change (``group["lr"]``); or a function without arguments,
            which is called before every step and takes precedence: do not put a scheduler on top of it.
        options: Every option of the rule with its value.
    """

    _bounds: ClassVar[Mapping[str, Bounds]]
    """Bounds of each option of the rule."""
    is_elementwise: ClassVar[bool] = False
    """Whether every element moves by its own gradient and state alone, so that a piece of a parameter learns as in the
    complete parameter; servers divide large parameters only then."""
    group_state: ClassVar[frozenset[str]] = frozenset()
    """Keys that the rule itself keeps in its groups, in addition to the given options."""

    def __init__(self, params: ParamsT, learning_rate: LearningRate, options: Mapping[str, float | bool]) -> None:
        self._rate_functions: list[Callable[[], float] | None] = []
        super().__init__(params, {"lr": learning_rate, **options})

    @abstractmethod
    def _initial_state(self, param: Tensor, group: Group) -> dict[str, Any]:
        """Returns the state of a parameter that has its first gradient."""

    @abstractmethod
    def _update(self, batch: ParameterBatch, group: Group) -> None:
        """Updates the parameters of the batch, in place, and their states."""

    def _update_group(self, group: Group, batches: Iterable[ParameterBatch]) -> None:
        for batch in batches:
            self._update(batch, group)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Updates every parameter that has a gradient.

        Args:
            closure: Computes the gradients and returns the loss; called once, with gradients enabled.

        Returns:
            The result of `closure`, or None without one.

        Raises:
            InvalidArgumentError: a gradient is sparse. No parameter has moved.
            ValueError: a learning-rate function returned no finite number >= 0. No parameter has moved.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        work = [self._batches(group) for group in self.param_groups]
        self.ask_learning_rates()
        for group, batches in zip(self.param_groups, work, strict=True):
            self._update_group(group, batches)
            for batch in batches:
                if batch.rounded:
                    foreach.copy_(batch.rounded, batch.params)
        return loss

    def add_param_group(self, param_group: Group) -> None:
        """Adds parameters with options of their own; options not in the group take the optimizer's defaults.

        Raises:
            TypeError: an option is no number, or a parameter is not real.
            ValueError: an option is out of bounds, a parameter is in a group already, or both ``lr`` and
                ``learning_rate`` are given.
        """
        group, rate = self._with_rate(param_group)
        super().add_param_group(group)
        try:
            self._check_group(self.param_groups[-1])
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise
        self._rate_functions.append(rate)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a copy of the groups and the state of `state_dict`, bit for bit.

        Learning-rate functions are not part of a state dict: those of this optimizer stay.
        """
        loaded = dict(state_dict)
        # Runs after all other hooks, and so sees the final state dict.
        last_hook = self.register_load_state_dict_pre_hook(lambda _, final: loaded.update(final))
        try:
            super().load_state_dict(state_dict)
        finally:
            last_hook.remove()
        # torch rounds state to the dtype of its parameter and keeps tensors that need no change, shared with the giver.
        saved = chain.from_iterable(group["params"] for group in loaded["param_groups"])
        own = chain.from_iterable(group["params"] for group in self.param_groups)
        for key, param in zip(saved, own, strict=True):
            for name, value in loaded["state"].get(key, {}).items():
                if isinstance(value, Tensor):
                    self.state[param][name] = value.to(param.device, arithmetic_dtype(param), copy=True)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_rate_functions": self._rate_functions}

    def _with_rate(self, param_group: Group) -> tuple[Group, Callable[[], float] | None]:
        """Returns the group with a number for ``lr``, and the function that will set it."""
        group = dict(param_group)
        if "learning_rate" in group:
            if "lr" in group:
                raise ValueError(f"{type(self).__name__}: a group gives both lr and learning_rate; leave one out")
            group["lr"] = group.pop("learning_rate")
        rate = group.get("lr", self.defaults["lr"])
        if not callable(rate):
            Bounds().check(f"{type(self).__name__}: learning_rate", rate.item() if isinstance(rate, Tensor) else rate)
            return group, None
        # NaN until the function was called, so that no reader takes it for a rate.
        return {**group, "lr": math.nan}, rate

    def _check_group(self, group: Group) -> None:
        name = type(self).__name__
        for option, bounds in self._bounds.items():
            bounds.check(f"{name}: {option}", group[option])
        for param in group["params"]:
            if not param.is_floating_point():
                raise TypeError(f"{name}: parameters must be real floating-point tensors, got {param.dtype}")

    def ask_learning_rates(self) -> None:
        """Sets ``lr`` of every group whose rate is a function; a step does it by itself.

        Raises:
            ValueError: a function returned no finite number >= 0.
        """
        name = f"{type(self).__name__}: what the learning_rate function returned"
        rates = [None if rate is None else float(rate()) for rate in self._rate_functions]
        for rate in rates:
            if rate is not None:
                Bounds().check(name, rate)
        for group, rate in zip(self.param_groups, rates, strict=True):
            if rate is not None:
                group["lr"] = rate

    def _batches(self, group: Group) -> list[ParameterBatch]:
        """Returns the parameters of the group that have a gradient and at least one element, by device and dtype."""
        batches: dict[tuple[torch.device, torch.dtype], ParameterBatch] = {}
        for param in group["params"]:
            grad = param.grad
            if grad is None or param.numel() == 0:
                continue
            if grad.layout is not torch.strided:
                raise InvalidArgumentError(self._sparse_refusal(param))
            state = self.state[param]
            if not state:
                state.update(self._initial_state(param, group))
            key = (param.device, param.dtype)
            batch = batches.get(key)
            if batch is None:
                batch = batches[key] = ParameterBatch()
            batch.append(param, grad, state)
        return list(batches.values())

    def _sparse_refusal(self, param: Tensor) -> str:
        return (
            f"{type(self).__name__}: the parameter of shape {tuple(param.shape)} has a sparse gradient"
            f" ({param.grad.layout if param.grad is not None else None}), and only dense ones can be applied;"
            " use sparse=False in its module, or keep its rows in a HashTable with a row optimizer"
        )
