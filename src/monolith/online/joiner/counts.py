"""Counts the events by their outcome."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["JoinCounts"]


@dataclass(slots=True)
class JoinCounts:
    """Counts since the state was created. They are saved with it, so that no event is counted twice."""

    impressions: int = 0
    actions: int = 0
    positives: int = 0
    """First examples of their key that have an action."""
    negatives: int = 0
    corrections: int = 0
    """Examples whose `pre_actions` name the actions of the example that they correct."""
    sampled_out: int = 0
    """Negatives dropped by sampling."""
    duplicate_impressions: int = 0
    duplicate_actions: int = 0
    """Repeated actions of a key, and the action that stands for none; both are redundant."""
    late_impressions: int = 0
    """Impressions that arrived after their window had closed; skipped, since they may be duplicates."""
    late_actions: int = 0
    """Actions whose example had already been emitted."""
    unmatched_actions: int = 0
    """Actions without an impression within the window."""
    ahead: int = 0
    """Events skipped because their time is in the future."""
    bad: int = 0
    """Records skipped because they were unreadable."""

    def to_dict(self) -> dict[str, int]:
        """Returns the counts as plain numbers."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, int]) -> JoinCounts:
        """Reads the result of `to_dict`, possibly of an older version."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: int(value) for name, value in values.items() if name in known})

    def __add__(self, other: JoinCounts) -> JoinCounts:
        mine, others = asdict(self), asdict(other)
        return JoinCounts(**{name: value + others[name] for name, value in mine.items()})
