"""Logs the torch calls of a model: two models with the same log have the same graph.

`torch.export` traces a model through the same calls that are logged here. So a model with the log of an earlier one,
with equal numbers, sizes and constants and with weights by name, would be traced to the same graph.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["CallLog", "log_calls"]

_Described: TypeAlias = "tuple[Any, ...]"
_PLAIN = (int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


class CallLog(NamedTuple):
    """Log of the calls of a function; equal logs mean equal graphs."""

    given: tuple[_Described, ...]
    """Names, types and sizes of inputs and weights."""
    calls: tuple[_Described, ...]
    """Operations with their arguments."""
    returned: tuple[_Described, ...]


def log_calls(
    function: Callable[[dict[str, Tensor]], tuple[Tensor, ...]],
    inputs: dict[str, Tensor],
    weights: Mapping[str, Tensor],
) -> CallLog | None:
    """Calls a function, and logs its torch operations. The state of the CPU random generator is restored.

    Args:
        function: The function to log.
        inputs: Its inputs.
        weights: Name -> tensor whose values may differ in another call.

    Returns:
        The log; None if it is not conclusive, because the function reads values of tensors, or raises.
    """
    recorder = _Recorder()
    given = [recorder.know(name, tensor) for name, tensor in (*inputs.items(), *weights.items())]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), recorder:
            returned = function(inputs)
    except Exception:  # noqa: BLE001 - the tracer reports the error
        return None
    if not recorder.is_clear:
        return None
    return CallLog(tuple(given), tuple(recorder.calls), tuple(map(recorder.described, returned)))


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Logs every operation with its arguments: tensors by their origin, everything else by value."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[_Described] = []
        self.is_clear = True
        """Whether equal logs imply equal graphs."""
        self._names: dict[int, str] = {}
        self._seen: list[Tensor] = []
        """Keeps tensors alive, so that no id is reused."""

    def know(self, name: str, tensor: Tensor) -> _Described:
        """Names a tensor; returns its description without its values."""
        self._names.setdefault(id(tensor), name)
        self._seen.append(tensor)
        return name, self._names[id(tensor)], tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device

    def described(self, value: Any) -> _Described:
        """Returns a comparable description of a value; of an unnamed tensor, its values."""
        if isinstance(value, Tensor):
            name = self._names.get(id(value))
            return ("tensor", name) if name is not None else self._constant(value)
        if isinstance(value, list | tuple):
            return (type(value).__name__, *map(self.described, value))
        if isinstance(value, dict):
            return ("dict", *((key, self.described(each)) for key, each in value.items()))
        if type(value) not in _PLAIN:
            self.is_clear = False
        return type(value).__name__, repr(value)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        call = (str(func), self.described(args), self.described(kwargs or {}))
        self.calls.append(call)
        found = func(*args, **(kwargs or {}))
        for place, each in enumerate(tree_leaves(found)):
            if isinstance(each, Tensor):
                self._names[id(each)] = f"{len(self.calls)}:{place}"
                self._seen.append(each)
            else:
                self.is_clear = False  # a value of a tensor, on which later calls may depend
        return found

    def _constant(self, tensor: Tensor) -> _Described:
        self._seen.append(tensor)
        if tensor.layout is not torch.strided or tensor.device.type != "cpu":
            self.is_clear = False
            return ("unclear",)
        data = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return "constant", tensor.dtype, tuple(tensor.shape), tensor.stride(), hashlib.sha256(data).digest()
