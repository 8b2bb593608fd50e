"""What a model asks of torch, call by call: two models that ask the same have the same graph.

`torch.export` follows a model through the very calls that are noted here. So a model whose log is that of an earlier
one, with numbers, sizes and constants the same and weights by their names, would be followed to the same graph.
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
    """Equal for calls that make equal graphs."""

    given: tuple[_Described, ...]
    """Names, types and sizes of inputs and weights."""
    calls: tuple[_Described, ...]
    """Operations, and what each was given."""
    returned: tuple[_Described, ...]


def log_calls(
    function: Callable[[dict[str, Tensor]], tuple[Tensor, ...]],
    inputs: dict[str, Tensor],
    weights: Mapping[str, Tensor],
) -> CallLog | None:
    """Calls a function, and notes what it asks of torch; what is drawn at random afterwards is as without it.

    Args:
        function: What is followed.
        inputs: What it is given.
        weights: Name -> tensor that may have other values in another call.

    Returns:
        None: it cannot be told what the function does, as it reads numbers of tensors, or raises.
    """
    recorder = _Recorder()
    given = [recorder.know(name, tensor) for name, tensor in (*inputs.items(), *weights.items())]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), recorder:
            returned = function(inputs)
    except Exception:  # noqa: BLE001 - whoever follows the function says what is wrong with it
        return None
    if not recorder.is_clear:
        return None
    return CallLog(tuple(given), tuple(recorder.calls), tuple(map(recorder.described, returned)))


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operation with its arguments: tensors by where they come from, everything else as it is."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[_Described] = []
        self.is_clear = True
        """Whether equal logs are equal graphs."""
        self._names: dict[int, str] = {}
        self._seen: list[Tensor] = []
        """They stay, so that no other one gets the id of one that has gone."""

    def know(self, name: str, tensor: Tensor) -> _Described:
        """Calls a tensor by a name; what it is, but for its values."""
        self._names.setdefault(id(tensor), name)
        self._seen.append(tensor)
        return name, self._names[id(tensor)], tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device

    def described(self, value: Any) -> _Described:
        """A value that can be compared; of a tensor that nobody knows its numbers."""
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
                self.is_clear = False  # a number of a tensor: whatever follows may depend on it
        return found

    def _constant(self, tensor: Tensor) -> _Described:
        self._seen.append(tensor)
        if tensor.layout is not torch.strided or tensor.device.type != "cpu":
            self.is_clear = False
            return ("unclear",)
        data = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return "constant", tensor.dtype, tuple(tensor.shape), tensor.stride(), hashlib.sha256(data).digest()
