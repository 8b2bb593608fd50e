"""What became of the events: every one is counted under what happened to it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["JoinCounts"]


@dataclass(slots=True)
class JoinCounts:
    """Since the state was made; they are saved with it, so that no event is counted twice."""

    impressions: int = 0
    actions: int = 0
    positives: int = 0
    """Examples with an action, the first of their key."""
    negatives: int = 0
    corrections: int = 0
    """Examples that name in `pre_actions` what went out before."""
    sampled_out: int = 0
    """Negatives that were drawn not to go out."""
    duplicate_impressions: int = 0
    duplicate_actions: int = 0
    """The same action of the same key again, or the one that stands for none: they tell nothing new."""
    late_impressions: int = 0
    """Their window had closed before they came; they are left out: nobody knows whether they came before."""
    late_actions: int = 0
    """Their example was out already."""
    unmatched_actions: int = 0
    """No impression came within the window."""
    ahead: int = 0
    """Events left out because they lie in the future."""
    bad: int = 0
    """Records left out because they could not be read."""

    def to_dict(self) -> dict[str, int]:
        """As plain numbers."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, int]) -> JoinCounts:
        """What `to_dict` gave, perhaps of an older version."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: int(value) for name, value in values.items() if name in known})

    def __add__(self, other: JoinCounts) -> JoinCounts:
        mine, others = asdict(self), asdict(other)
        return JoinCounts(**{name: value + others[name] for name, value in mine.items()})
