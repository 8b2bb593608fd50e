"""The check of an argument that counts something."""

from __future__ import annotations

__all__ = ["whole_number"]


def whole_number(name: str, value: object, *, at_least: int) -> int:
    """The value, which must be a whole number from `at_least` on.

    Raises:
        ValueError: it is not; `name` says what it is.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(f"{name} must be a whole number from {at_least} on, got {value!r}")
    return value
