"""The dense weights of one server: pieces of parameters, and torch optimizers that update them."""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from monolith.checkpoint import large_buffer
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.optim import global_step_from
from monolith.ps.dense.layout import regions_of
from monolith.ps.dense.optimizer_spec import group_state_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch.optim import Optimizer

    from monolith.ps.dense.layout import DenseLayout, WeightShard

_RATE = "lr"


class HostedWeights:
    """A server's share of the dense weights of a model. Not thread-safe: the owner serializes calls.

    Raises:
        InvalidArgumentError: the values do not match the layout, or there is no such optimizer.
    """

    def __init__(self, layout: DenseLayout, index: int, values: memoryview, *, modules: Iterable[str] = ()) -> None:
        self.pieces: Sequence[WeightShard] = layout.servers[index]
        self._specs = layout.optimizers
        self._modules = tuple(modules)
        _require_size(values, self.pieces, "the first values")
        self._regions = [large_buffer(sum(piece.bytes for piece in region)) for region in regions_of(self.pieces)]
        self._parameters = _parameters_in(self._regions, regions_of(self.pieces))
        for piece, value in zip(self.pieces, _tensors_of(values, self.pieces), strict=True):
            self._parameters[piece.name].data.copy_(value)
        self._optimizers = self._make_optimizers()
        # An optimizer of a user module may keep a reference to a gradient, whose memory is freed after the push.
        self._keeps_gradients = any(":" in spec.kind for spec in self._specs.values())
        self._copies = [_Copies(region) for region in self._regions]

    @property
    def num_regions(self) -> int:
        """Number of regions to pull."""
        return len(self._regions)

    def copy_of(self, region: int) -> np.ndarray[Any, Any]:
        """Returns the current values of a region; a returned array never changes."""
        return self._copies[region].present()

    def check(
        self, present: Sequence[bool], rates: Mapping[str, Sequence[Mapping[str, Any]]], body: memoryview
    ) -> None:
        """Validates a push before anything changes.

        Raises:
            InvalidArgumentError: the push cannot be applied; gives the reason.
        """
        if len(present) != len(self.pieces):
            raise InvalidArgumentError(
                f"dense weights: a push must flag the gradients of {len(self.pieces)} pieces, as this server has, got"
                f" {len(present)}"
            )
        _require_size(body, [piece for piece, there in zip(self.pieces, present, strict=True) if there], "gradients")
        if rates.keys() != self._optimizers.keys():
            raise InvalidArgumentError(
                f"dense weights: learning rates must be of the optimizers {sorted(self._optimizers)}, got"
                f" {sorted(rates)}"
            )
        for name, spec in self._specs.items():
            if len(rates[name]) != len(spec.groups):
                raise InvalidArgumentError(
                    f"dense weights: optimizer {name!r} has {len(spec.groups)} groups, got rates of {len(rates[name])}"
                )
            for group, options in zip(spec.groups, rates[name], strict=True):
                unknown = options.keys() - group.options.keys() - {_RATE}
                rate = options.get(_RATE)
                if unknown or isinstance(rate, bool) or not isinstance(rate, int | float):
                    raise InvalidArgumentError(
                        f"dense weights: optimizer {name!r}: a group takes lr, a number, and {sorted(group.options)},"
                        f" got {dict(options)}"
                    )

    def apply(
        self, present: Sequence[bool], rates: Mapping[str, Sequence[Mapping[str, Any]]], body: memoryview, *, step: int
    ) -> None:
        """Makes one step of every optimizer; pieces that are not present have no gradient. REQUIRES: `check` passed."""
        pieces = [piece for piece, there in zip(self.pieces, present, strict=True) if there]
        for piece, gradient in zip(pieces, _tensors_of(body, pieces), strict=True):
            self._parameters[piece.name].grad = gradient.clone() if self._keeps_gradients else gradient
        try:
            with global_step_from(lambda: step):
                for name, optimizer in self._optimizers.items():
                    groups = zip(optimizer.param_groups, self._specs[name].groups, rates[name], strict=True)
                    for group, initial, now in groups:
                        group.update({**initial.options, **{key: _untravelled(value) for key, value in now.items()}})
                    optimizer.step()
        finally:
            for parameter in self._parameters.values():
                parameter.grad = None
            for copies in self._copies:
                copies.forget()

    def state(self) -> dict[str, Any]:
        """Returns weights and optimizer state by name; the tensors are live."""
        return {
            "weights": {name: parameter.data for name, parameter in self._parameters.items()},
            "optimizers": {name: self._optimizer_state(optimizer) for name, optimizer in self._optimizers.items()},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Loads weights and optimizer state. Changes nothing if it raises.

        Raises:
            FailedPreconditionError: the state is of other weights, shapes or optimizers.
        """
        weights, optimizers = state["weights"], state["optimizers"]
        expected = {name: (tuple(parameter.shape), parameter.dtype) for name, parameter in self._parameters.items()}
        actual = {name: (tuple(weight.shape), weight.dtype) for name, weight in weights.items()}
        if actual != expected or optimizers.keys() != self._optimizers.keys():
            raise FailedPreconditionError(
                f"dense weights: a state of other weights or optimizers, {sorted(optimizers)} and {actual}; this server"
                f" has {sorted(self._optimizers)} and {expected}"
            )
        rebuilt = self._make_optimizers()
        for name, optimizer in rebuilt.items():
            try:
                self._load_optimizer(optimizer, optimizers[name])
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise FailedPreconditionError(
                    f"dense weights: optimizer {name!r} cannot take the state: {error!r}"
                ) from error
        self._optimizers = rebuilt
        for name, value in weights.items():
            self._parameters[name].data.copy_(value)
        for copies in self._copies:
            copies.forget()

    def _make_optimizers(self) -> dict[str, Optimizer]:
        return {name: spec.make(self._parameters, modules=self._modules) for name, spec in self._specs.items()}

    def _optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        state = {
            name: dict(optimizer.state[parameter])
            for name, parameter in self._parameters.items()
            if parameter in optimizer.state
        }
        keys = group_state_keys(optimizer)
        return {
            "state": state,
            "groups": [{key: group[key] for key in sorted(keys)} for group in optimizer.param_groups],
        }

    def _load_optimizer(self, optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
        """Loads through `Optimizer.load_state_dict`, as a checkpoint of one process is restored."""
        plain = optimizer.state_dict()
        order = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        names = {id(parameter): name for name, parameter in self._parameters.items()}
        numbered = {
            number: {key: _own(value) for key, value in saved["state"][names[id(parameter)]].items()}
            for number, parameter in enumerate(order)
            if names[id(parameter)] in saved["state"]
        }
        groups = [{**own, **kept} for own, kept in zip(plain["param_groups"], saved["groups"], strict=True)]
        optimizer.load_state_dict({**plain, "state": numbered, "param_groups": groups})


class _Copies:
    """Copies of one region for pulls; one copy for each version, with reused memory."""

    def __init__(self, region: Tensor) -> None:
        self._region = region
        self._shown: np.ndarray[Any, Any] | None = None
        self._spare: list[np.ndarray[Any, Any]] = []

    def present(self) -> np.ndarray[Any, Any]:
        if self._shown is None:
            memory = self._spare.pop() if self._spare else large_buffer(self._region.numel()).numpy()
            torch.from_numpy(memory).copy_(self._region)
            # One view for each version: the memory is free when the last answer that contains the view was sent.
            self._shown = memory[:]
            weakref.finalize(self._shown, self._spare.append, memory)
        return self._shown

    def forget(self) -> None:
        """Drops the copy after a change of the region."""
        self._shown = None


def _parameters_in(buffers: Sequence[Tensor], regions: Sequence[Sequence[WeightShard]]) -> dict[str, nn.Parameter]:
    parameters = {}
    for buffer, region in zip(buffers, regions, strict=True):
        for piece, value in zip(region, _split(buffer, region), strict=True):
            parameters[piece.name] = nn.Parameter(value)
    return parameters


def _tensors_of(body: memoryview, pieces: Sequence[WeightShard]) -> list[Tensor]:
    """Returns tensors that share the memory of a body, and are valid only as long as it is."""
    if not body.nbytes:
        return [torch.empty(piece.shape, dtype=piece.torch_dtype) for piece in pieces]
    # Avoids torch's warning about memory that is not writable; the tensors are only read.
    address = np.frombuffer(body, dtype=np.uint8).__array_interface__["data"][0]
    flat = torch.frombuffer((ctypes.c_uint8 * body.nbytes).from_address(address), dtype=torch.uint8)
    return _split(flat, pieces)


def _split(flat: Tensor, pieces: Sequence[WeightShard]) -> list[Tensor]:
    tensors, offset = [], 0
    for piece in pieces:
        raw = flat[offset : offset + piece.bytes]
        offset += piece.bytes
        tensors.append(
            raw.view(piece.torch_dtype).view(piece.shape)
            if piece.bytes
            else torch.empty(piece.shape, dtype=piece.torch_dtype)
        )
    return tensors


def _require_size(body: memoryview, pieces: Sequence[WeightShard], what: str) -> None:
    expected = sum(piece.bytes for piece in pieces)
    if body.nbytes != expected:
        raise InvalidArgumentError(
            f"dense weights: {what} of {len(pieces)} pieces are {expected} bytes, got {body.nbytes}"
        )


def _own(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _untravelled(value: Any) -> Any:
    return tuple(_untravelled(item) for item in value) if isinstance(value, list) else value
