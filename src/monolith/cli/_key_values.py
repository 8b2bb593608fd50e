"""Settings of other programs as they stand on the command line."""

from __future__ import annotations

__all__ = ["key_and_value"]


def key_and_value(text: str, option: str) -> tuple[str, str]:
    """The two halves of ``KEY=VALUE``.

    Raises:
        ValueError: there are none.
    """
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(f"{option} takes KEY=VALUE, got '{text}'")
    return key, value
