"""The base class of metrics, and their inputs: predictions, labels, weights; checked, flat, and in float64."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple, Self

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping


class Samples(NamedTuple):
    """Rows that count, each a float64 tensor ``[n]`` on the metric's device."""

    predictions: Tensor
    labels: Tensor
    weights: Tensor
    positions: Tensor | None
    """int64 ``[n]``: where the rows stood in the batch; None if all of them count."""

    def select(self, values: Tensor) -> Tensor:
        """Returns the entries of `values` that belong to the rows that count."""
        return values if self.positions is None else values[self.positions]


def check_samples(
    subject: str, predictions: Tensor, labels: Tensor, weights: Tensor | None, device: torch.device
) -> Samples:
    """Returns predictions, labels and weights of one shape as flat float64 tensors, without the rows of weight 0.

    A row of weight 0 does not count, whatever it holds: give weight 0 to rows without a label.

    Raises:
        ValueError: Shapes differ, a weight is negative or not finite, or a prediction or label that counts is not
            finite.
    """
    predictions = _flat(subject, "predictions", predictions, device)
    labels = _flat(subject, "labels", labels, device)
    _require_length(subject, "labels", labels, predictions)
    if weights is None:
        checked = Samples(predictions, labels, torch.ones_like(predictions), None)
    else:
        weights = _flat(subject, "weights", weights, device)
        _require_length(subject, "weights", weights, predictions)
        refuse(subject, "weights must be finite and >= 0", weights, ~(torch.isfinite(weights) & (weights >= 0)))
        checked = _without_zero_weights(predictions, labels, weights)
    refuse(subject, "predictions must be finite", checked.predictions, ~torch.isfinite(checked.predictions))
    refuse(subject, "labels must be finite", checked.labels, ~torch.isfinite(checked.labels))
    return checked


def require_binary(subject: str, samples: Samples) -> None:
    """Raises if labels are other than 0 and 1."""
    wrong = (samples.labels != 0) & (samples.labels != 1)
    refuse(subject, "labels must be 0 or 1 (weight 0 leaves a row out)", samples.labels, wrong)


def require_probabilities(subject: str, samples: Samples) -> None:
    """Raises if predictions are outside [0, 1]."""
    wrong = (samples.predictions < 0) | (samples.predictions > 1)
    refuse(subject, "predictions must be in [0, 1] (sigmoid of the logits)", samples.predictions, wrong)


def refuse(subject: str, expected: str, values: Tensor, wrong: Tensor) -> None:
    """Raises a ValueError that names the first of the `values` marked as `wrong`, if there is one."""
    if bool(wrong.any()):
        first = int(wrong.to(torch.uint8).argmax())
        raise ValueError(f"{subject}: {expected}, got {values[first].item()!r} and {int(wrong.sum()) - 1} more such")


def _flat(subject: str, name: str, values: Tensor, device: torch.device) -> Tensor:
    if not isinstance(values, Tensor):
        raise TypeError(f"{subject}: {name} must be a tensor, got {type(values).__name__}; use torch.as_tensor")
    if values.dtype.is_complex:
        raise TypeError(f"{subject}: {name} must be real numbers, got {values.dtype}")
    return values.detach().reshape(-1).to(device=device, dtype=torch.float64)


def _require_length(subject: str, name: str, values: Tensor, predictions: Tensor) -> None:
    if len(values) != len(predictions):
        raise ValueError(f"{subject}: {name} must be as many as predictions, {len(predictions)}, got {len(values)}")


def _without_zero_weights(predictions: Tensor, labels: Tensor, weights: Tensor) -> Samples:
    if bool((weights != 0).all()):
        return Samples(predictions, labels, weights, None)
    positions = weights.nonzero().squeeze(1)
    return Samples(predictions[positions], labels[positions], weights[positions], positions)


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
    """A metric that is a function of sums; its state is one float64 tensor of them."""

    _shape: tuple[int, ...]
    _state_name = "sums"

    def reset(self) -> None:
        """Clears the state."""
        self._sums = torch.zeros(self._shape, dtype=torch.float64, device=self.device)

    def state(self) -> dict[str, Tensor]:
        """Returns the sums; those of several workers may be added up, as by all-reduce."""
        return {self._state_name: self._sums.clone()}

    def _set_state(self, state: Mapping[str, Tensor]) -> None:
        self._sums = state[self._state_name]

    def _add_state(self, state: Mapping[str, Tensor]) -> None:
        self._sums = self._sums + state[self._state_name]


def ratio(numerator: float, denominator: float) -> float:
    """Returns ``numerator / denominator``, NaN for a denominator of 0."""
    return numerator / denominator if denominator != 0 else float("nan")
