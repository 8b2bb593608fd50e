"""Converts arguments of users to the typed, contiguous NumPy views that the core takes, and results back.

Torch CPU tensors and NumPy arrays are passed without a copy when they are contiguous; anything else is copied, or
rejected with the call to write. The checks are ordered so that a good array passes after two or three attribute reads:
runs for every lookup of a single id.
"""

from __future__ import annotations

import math
import operator
import time as clock
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from monolith import _core
from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


Ids: TypeAlias = "torch.Tensor | NDArray[np.int64] | Sequence[Any] | int"
"""int64 of any shape."""
Floats: TypeAlias = "torch.Tensor | NDArray[np.float32] | Sequence[Any]"
"""float32."""
Times: TypeAlias = "int | torch.Tensor | NDArray[np.int64] | None"
"""Unix seconds: one for all ids, one per id, or None for now."""

MAX_IDS = 2**31 - 1
"""Ids of one call: positions are 32-bit inside the core."""
NO_STEP = -1
"""Step of a core call in which only admission would use it."""
_TIME_END = 2**32
_INT64 = np.dtype(np.int64)
_FLOAT32 = np.dtype(np.float32)
_TORCH_OF = {_INT64: torch.int64, _FLOAT32: torch.float32}


def id_array(ids: Ids, subject: str, name: str = "ids") -> NDArray[np.int64]:
    """Returns a C-contiguous int64 view (or copy) of `ids`, in their shape."""
    array = ids if type(ids) is np.ndarray else _as_numpy(ids, _INT64, subject, name)
    if array.dtype is not _INT64 and array.dtype != _INT64:
        raise TypeError(_wrong_numpy_dtype(subject, name, array.dtype, _INT64))
    if array.size > MAX_IDS:
        raise InvalidArgumentError(
            f"{subject}: at most 2^31 - 1 {name} fit in one call, got {array.size}; split the batch"
        )
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def bucket_array(buckets: torch.Tensor | None, num_ids: int, subject: str) -> NDArray[np.uint16] | None:
    """Returns the buckets of the ids as the core takes them, which checks their range; None: the ids determine them."""
    if buckets is None:
        return None
    if buckets.dtype != torch.int16 or buckets.shape != (num_ids,):
        raise InvalidArgumentError(
            f"{subject}: buckets must be int16 [{num_ids}], one for each id, got {buckets.dtype} {list(buckets.shape)}"
        )
    array: NDArray[np.uint16] = buckets.contiguous().numpy().view(np.uint16)
    return array


def float_array(values: Floats, shape: tuple[int, ...], subject: str, name: str) -> NDArray[np.float32]:
    """Returns a C-contiguous float32 view (or copy) of `values`, which must have exactly this shape."""
    array = values if type(values) is np.ndarray else _as_numpy(values, _FLOAT32, subject, name)
    if array.dtype is not _FLOAT32 and array.dtype != _FLOAT32:
        raise TypeError(_wrong_numpy_dtype(subject, name, array.dtype, _FLOAT32))
    if array.shape != shape:
        raise InvalidArgumentError(f"{subject}: {name} must have shape {shape}, got {array.shape}")
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def time_array(time: Times, shape: tuple[int, ...], subject: str) -> NDArray[np.int64]:
    """Returns int64 [1] or [n]: the time of all ids, or of each."""
    if time is None:
        return np.array((int(clock.time()),), _INT64)
    if isinstance(time, np.ndarray | torch.Tensor | list | tuple) and not _is_scalar(time):
        times = id_array(time, subject, "time")
        if times.shape != shape:
            raise InvalidArgumentError(
                f"{subject}: time must be one number or have the shape {shape} of ids, got {times.shape}"
            )
        if times.size and not (times.min() >= 0 and times.max() < _TIME_END):
            bad = times[(times < 0) | (times >= _TIME_END)].flat[0]
            raise InvalidArgumentError(_wrong_time(subject, int(bad)))
        return times.reshape(-1)
    try:
        seconds = operator.index(time)
    except TypeError:
        kind = type(time).__name__
        raise TypeError(f"{subject}: time must be integer Unix seconds, got {kind} {time!r}; write int(time)") from None
    if not 0 <= seconds < _TIME_END:
        raise InvalidArgumentError(_wrong_time(subject, seconds))
    return np.array((seconds,), _INT64)


def step_number(step: int, subject: str) -> int:
    """Returns the global step as a plain int."""
    try:
        number = operator.index(step)
    except TypeError:
        raise TypeError(f"{subject}: step must be an int, got {type(step).__name__} {step!r}") from None
    if not 0 <= number < 2**63:
        raise InvalidArgumentError(f"{subject}: step must be >= 0, got {number}")
    return number


def optional_step(step: int | None, subject: str) -> int | None:
    """Returns the global step as a plain int, or None."""
    return None if step is None else step_number(step, subject)


def finite_scale(scale: float, subject: str) -> float:
    """Returns the factor of all gradients as a plain float."""
    if not math.isfinite(scale):
        raise InvalidArgumentError(f"{subject}: scale must be finite, got {scale}")
    return float(scale)


def array_size(values: object) -> int:
    """Returns the number of elements of an array that may be too large to copy; lists count as 0."""
    if isinstance(values, torch.Tensor):
        return values.numel()
    return values.size if isinstance(values, np.ndarray) else 0


def as_type_of(array: NDArray[Any], like: object) -> Any:
    """Returns the array in the kind of `like`: NumPy for NumPy, torch for everything else. Copies nothing."""
    return array if isinstance(like, np.ndarray) else torch.from_numpy(array)


class _WritableAlias:
    """The same memory without the read-only mark; keeps the owner alive."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._owner = array
        self.__array_interface__ = array.__array_interface__ | {"data": (array.ctypes.data, False)}


def tensor_view(array: NDArray[Any]) -> torch.Tensor:
    """Returns a tensor over read-only memory of the core; torch has no read-only tensors and would warn."""
    return torch.from_numpy(np.asarray(_WritableAlias(array)) if array.size else array.copy())


def _as_numpy(values: object, dtype: np.dtype[Any], subject: str, name: str) -> NDArray[Any]:
    if isinstance(values, torch.Tensor):
        if values.dtype is not _TORCH_OF[dtype]:
            raise TypeError(
                f"{subject}: {name} must be {dtype}, got {values.dtype}; write {name}.to({_TORCH_OF[dtype]})"
            )
        if not values.is_cpu:
            raise InvalidArgumentError(f"{subject}: {name} must be on the CPU, got {values.device}; write {name}.cpu()")
        if values.layout is not torch.strided:
            raise TypeError(f"{subject}: {name} must be a dense tensor, got {values.layout}; write {name}.to_dense()")
        return (values.detach() if values.requires_grad else values).numpy()
    if isinstance(values, np.ndarray):
        return np.asarray(values)
    return _from_python(values, dtype, subject, name)


def _from_python(values: object, dtype: np.dtype[Any], subject: str, name: str) -> NDArray[Any]:
    """Converts lists and numbers. NumPy would silently cut 1.5 to 1 and wrap 2**63, so types are checked first."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InvalidArgumentError(f"{subject}: {name} must be a rectangular list of numbers: {error}") from None
    if array.size == 0:
        return array.astype(dtype)
    allowed = "i" if dtype is _INT64 else "fiu"
    if array.dtype.kind not in allowed:
        kind = "integers in [-2^63, 2^63)" if dtype is _INT64 else "numbers"
        raise TypeError(f"{subject}: {name} must be {dtype} ({kind}), got {type(values).__name__} of {array.dtype}")
    return array.astype(dtype)


def _is_scalar(time: object) -> bool:
    return isinstance(time, np.ndarray | torch.Tensor) and time.ndim == 0


def _wrong_numpy_dtype(subject: str, name: str, got: np.dtype[Any], expected: np.dtype[Any]) -> str:
    cast = f"{name}.view(np.int64)" if got == np.uint64 and expected is _INT64 else f"{name}.astype(np.{expected})"
    return f"{subject}: {name} must be {expected}, got {got}; write {cast}"


def _wrong_time(subject: str, got: int) -> str:
    return f"{subject}: time must be Unix seconds in [0, 2^32), got {got}"


_RECYCLED_FLOATS = 2**14
"""From this size on results lie in memory that the core keeps for the next batch."""


def new_rows(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Returns float32 of this shape, uninitialised.

    A large batch takes the memory of an earlier one: fresh pages from the system would have to be cleared, which costs
    as much as reading the rows.
    """
    count = math.prod(shape)
    if count < _RECYCLED_FLOATS:
        return np.empty(shape, np.float32)
    return _core.new_floats(count).reshape(shape)
