"""Arguments that may be one thing or a list of things, as parameters of layers often are."""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def extend_as_list(x: Any, n: int) -> list[Any] | tuple[Any, ...]:
    """Returns a list of at least `n`: a list or tuple is padded with None, anything else is repeated.

    A long enough list or tuple is returned as it is. Repetitions are copies, so that layers do not share one object;
    what cannot be copied is shared.

    >>> extend_as_list([1], 3), extend_as_list((1,), 2), extend_as_list("relu", 2)
    ([1, None, None], [1, None], ['relu', 'relu'])
    """
    if isinstance(x, list | tuple):
        return x if len(x) >= n else [*x, *[None] * (n - len(x))]
    try:
        return [x if place == 0 else copy.deepcopy(x) for place in range(n)]
    except Exception:  # noqa: BLE001 - a class may refuse to be copied with any error
        return [x] * n


def check_list(
    candidate: list[T] | None, length_checker: Callable[[int], bool], could_be_none: bool = False
) -> list[T] | None:
    """Returns the candidate, which must be a list of an accepted length, or None where that is accepted.

    Raises:
        TypeError: it is not a list, or None where one is needed; tuples are not lists.
        ValueError: its length is not accepted.
    """
    if candidate is None:
        if could_be_none:
            return None
        raise TypeError("expected a list, got None")
    if not isinstance(candidate, list):
        raise TypeError(f"expected a list, got {type(candidate).__name__}")
    if not length_checker(len(candidate)):
        raise ValueError(f"the list has a length that is not accepted, got {len(candidate)}: {candidate!r}")
    return candidate


def to_list(x: Any) -> list[Any]:
    """Returns a list unchanged, anything else, also a tuple, as the only element of a list.

    >>> to_list([1]), to_list((1, 2)), to_list(None)
    ([1], [(1, 2)], [None])
    """
    return x if isinstance(x, list) else [x]


def to_snake_case(name: str) -> str:
    """Converts a class name to snake case; a name with a leading underscore is prefixed by ``private``.

    >>> to_snake_case("DeepFMTower"), to_snake_case("_Head"), to_snake_case("Conv2D")
    ('deep_fm_tower', 'private__head', 'conv2d')
    """
    words = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    snake = re.sub(r"([a-z])([A-Z])", r"\1_\2", words).lower()
    return f"private{snake}" if snake.startswith("_") else snake
