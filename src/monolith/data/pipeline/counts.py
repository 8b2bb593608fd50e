"""Numbers of elements and rows: the check of an argument that is one, and what is known before reading."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["KnownLength", "whole_number"]


class KnownLength(NamedTuple):
    """The length of a dataset before it is read; None: unknown."""

    elements: int | None = None
    rows: int | None = None
    """Number of rows of all elements together, if elements have rows."""


def whole_number(name: str, value: object, *, at_least: int) -> int:
    """Returns the value, which must be an integer of at least `at_least`.

    Raises:
        ValueError: it is not; `name` is the name in the message.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(f"{name} must be an integer >= {at_least}, got {value!r}")
    return value
