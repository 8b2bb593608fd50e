"""Which bases of a log stay, and from where on increments are needed: pure, decided part by part."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from monolith.deltalog.bases import Base


class Kept(NamedTuple):
    """What stays."""

    bases: list[Base]
    needed: dict[str, int]
    """Part -> number of the first increment that somebody needs who begins at one of these bases."""


def kept_by(bases: Sequence[Base], parts: Iterable[str], *, keep: int) -> Kept:
    """Keeps of every part its newest bases: one that holds a single part does not make those of others go.

    Without a base of it, everything of a part is needed.

    Args:
        bases: All there are.
        parts: Of the log.
        keep: How many bases of each part stay.
    """
    newest = {part: _by_number(bases, part)[-keep:] for part in parts}
    kept = {base.name for found in newest.values() for base in found}
    needed = {part: min((base.numbers[part] + 1 for base in found), default=0) for part, found in newest.items()}
    return Kept([base for base in bases if base.name in kept], needed)


def _by_number(bases: Sequence[Base], part: str) -> list[Base]:
    """Those that hold a part, the newest last: by what they contain, since clocks jump."""
    return sorted((base for base in bases if base.holds(part)), key=lambda base: base.numbers[part])
