"""Decides which bases of a log are kept, and from which number on increments are needed. Pure; decided per part."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from monolith.deltalog.bases import Base


class Kept(NamedTuple):
    """What is kept."""

    bases: list[Base]
    needed: dict[str, int]
    """Part -> number of the first increment that a reader starting at one of these bases needs."""


def kept_by(bases: Sequence[Base], parts: Iterable[str], *, keep: int) -> Kept:
    """Keeps the newest bases of every part: a base that holds a single part does not displace those of others.

    A part without a base is kept entirely.

    Args:
        bases: All bases of the log.
        parts: All parts of the log.
        keep: Number of bases to keep for each part.
    """
    newest = {part: _by_number(bases, part)[-keep:] for part in parts}
    kept = {base.name for found in newest.values() for base in found}
    needed = {part: min((base.numbers[part] + 1 for base in found), default=0) for part, found in newest.items()}
    return Kept([base for base in bases if base.name in kept], needed)


def _by_number(bases: Sequence[Base], part: str) -> list[Base]:
    """Returns the bases that hold a part, the newest last; ordered by the contained number, since clocks jump."""
    return sorted((base for base in bases if base.holds(part)), key=lambda base: base.numbers[part])
