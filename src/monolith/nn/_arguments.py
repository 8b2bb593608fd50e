"""Checks of arguments with uniform messages: subject, expected, got.

Shapes are written with letters for sizes that are free (``("B", "T", 16)``) and numbers for sizes that are not.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor


def require_shape(subject: str, name: str, tensor: Tensor, shape: Sequence[int | str]) -> None:
    """Raises unless the sizes of `tensor` are those of `shape`; a letter stands for any size."""
    sizes = tensor.shape
    if len(sizes) == len(shape) and all(
        isinstance(want, str) or want == got for want, got in zip(shape, sizes, strict=True)
    ):
        return
    expected = ", ".join(str(want) for want in shape)
    raise ValueError(f"{subject}: {name} must have shape [{expected}], got {list(sizes)}")


def require_last_dim(subject: str, name: str, tensor: Tensor, dim: int) -> None:
    """Raises unless the last size of `tensor` is `dim`."""
    if tensor.ndim == 0 or tensor.shape[-1] != dim:
        raise ValueError(f"{subject}: {name} must have shape [..., {dim}], got {list(tensor.shape)}")


def require_mask(subject: str, mask: Tensor, shape: Sequence[int]) -> None:
    """Raises if a `mask` is not boolean or not of `shape`; True marks what counts."""
    if mask.dtype.is_floating_point or mask.dtype.is_complex:
        raise TypeError(f"{subject}: mask must be bool or 0/1 integers (1 counts), got {mask.dtype}")
    require_shape(subject, "mask", mask, shape)


def require_positive(subject: str, **sizes: int) -> None:
    """Raises if sizes are not integers of at least 1."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"{subject}: {name} must be an integer, got {size!r}")
        if size < 1:
            raise ValueError(f"{subject}: {name} must be >= 1, got {size}")


def positive_sizes(subject: str, name: str, sizes: Iterable[int]) -> tuple[int, ...]:
    """Returns `sizes` as a tuple of at least one integer, each at least 1."""
    chosen = tuple(sizes)
    if not chosen:
        raise ValueError(f"{subject}: {name} must have at least one size, got none")
    for index, size in enumerate(chosen):
        require_positive(subject, **{f"{name}[{index}]": size})
    return chosen


def require_between(subject: str, low: float, high: float, **numbers: float) -> None:
    """Raises if numbers are outside ``[low, high)``."""
    for name, number in numbers.items():
        if not low <= number < high:
            raise ValueError(f"{subject}: {name} must be in [{low:g}, {high:g}), got {number!r}")


def require_choice(subject: str, name: str, value: object, choices: Sequence[str | None]) -> None:
    """Raises if a `value` is not one of `choices`, and names the nearest one."""
    if value in choices:
        return
    names = [choice for choice in choices if choice is not None]
    close = difflib.get_close_matches(str(value), names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"{subject}: {name} must be one of {', '.join(map(repr, choices))}, got {value!r}{hint}")
