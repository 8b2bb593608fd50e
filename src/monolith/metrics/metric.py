"""The base of all metrics: they are fed batch by batch, and those of several workers can be added up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


class Metric(ABC):
    """A number about predictions, computed from a stream.

    ``update`` adds a batch, ``compute`` reads the number so far, ``merge`` adds what another metric has seen: merging
    in any order and grouping gives what one metric fed with everything gives, up to rounding. Sums are kept in float64.
    An ``update`` that is rejected changes nothing. Not thread-safe; give each thread its own metric and merge them.

    Args:
        device: Device of the state; batches are moved there.
    """

    def __init__(self, *, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.reset()

    @abstractmethod
    def compute(self) -> float:
        """Returns the number for everything seen; NaN where it is not defined, such as for nothing."""

    @abstractmethod
    def reset(self) -> None:
        """Clears the state."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Returns everything seen, as plain tensors: copies, to save or to send."""

    @abstractmethod
    def _set_state(self, state: Mapping[str, Tensor]) -> None:
        """Replaces the state by a checked one, whose tensors are copies."""

    @abstractmethod
    def _add_state(self, state: Mapping[str, Tensor]) -> None:
        """Adds a state of the same kind, whose tensors are copies."""

    def _settings(self) -> dict[str, object]:
        """Returns the settings that must agree for two metrics to be merged."""
        return {}

    def _check_state(self, state: Mapping[str, Tensor]) -> None:
        """Raises if the shapes of a state do not fit; the names are checked already."""
        own = self.state()
        for name, tensor in state.items():
            if tensor.shape != own[name].shape:
                expected, got = list(own[name].shape), list(tensor.shape)
                raise ValueError(f"{type(self).__name__}: state {name!r} must have shape {expected}, got {got}")

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Replaces the state by one that :meth:`state` returned, and continues from it."""
        own = self.state()
        if state.keys() != own.keys():
            names = f"{sorted(own)}, got {sorted(state)}"
            raise ValueError(f"{type(self).__name__}: a state must have the tensors {names}")
        self._check_state(state)
        copies = {name: tensor.detach().to(self.device, own[name].dtype, copy=True) for name, tensor in state.items()}
        self._set_state(copies)

    def merge(self, other: Self) -> Self:
        """Adds what `other` has seen; returns this metric. `other` is unchanged."""
        if type(other) is not type(self):
            raise TypeError(f"{type(self).__name__}: can merge only its own kind, got {type(other).__name__}")
        if self._settings() != other._settings():
            settings = f"{self._settings()} and {other._settings()}"
            raise ValueError(f"{type(self).__name__}: can merge only with equal settings, got {settings}")
        self._add_state({name: tensor.to(self.device) for name, tensor in other.state().items()})
        return self

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self._settings().items())
        return f"{type(self).__name__}({settings})"


class SumMetric(Metric):
    """A metric that is a function of a few sums; its state is one float64 tensor of them."""

    _num_sums: int

    def reset(self) -> None:
        """Clears the state."""
        self._sums = torch.zeros(self._num_sums, dtype=torch.float64, device=self.device)

    def state(self) -> dict[str, Tensor]:
        """Returns the sums; those of several workers may be added up, as by all-reduce."""
        return {"sums": self._sums.clone()}

    def _set_state(self, state: Mapping[str, Tensor]) -> None:
        self._sums = state["sums"]

    def _add_state(self, state: Mapping[str, Tensor]) -> None:
        self._sums = self._sums + state["sums"]


def ratio(numerator: float, denominator: float) -> float:
    """Returns ``numerator / denominator``, NaN for a denominator of 0."""
    return numerator / denominator if denominator != 0 else float("nan")
