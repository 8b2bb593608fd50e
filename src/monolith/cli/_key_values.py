"""Settings of other programs as they stand on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["key_values"]


def key_values(texts: Iterable[str], option: str) -> dict[str, str]:
    """Returns what an option was given as ``KEY=VALUE``, some times.

    Raises:
        ValueError: something else.
    """
    settings = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ValueError(f"{option} takes KEY=VALUE, got '{text}'")
        settings[key] = value
    return settings
