"""Decides which checkpoints to keep; does no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class KeptCheckpoint:
    """A checkpoint that exists."""

    path: str
    time: float
    """Unix seconds of its save."""


class Retention:
    """Keeps the newest checkpoints, one every given number of hours for good, and exempt ones, which are not counted.

    >>> retention = Retention(max_to_keep=1, keep_every_hours=None, now=0.0)
    >>> retention.record("model.ckpt-10", 1.0), retention.record("model.ckpt-20", 2.0)
    ([], ['model.ckpt-10'])
    """

    def __init__(self, *, max_to_keep: int | None, keep_every_hours: float | None, now: float) -> None:
        if max_to_keep is not None and max_to_keep < 0:
            raise InvalidArgumentError(f"max_to_keep must be >= 0 (0 and None keep all), got {max_to_keep}")
        if keep_every_hours is not None and not keep_every_hours > 0:
            raise InvalidArgumentError(f"keep_every_hours must be > 0, got {keep_every_hours}")
        self._max_to_keep = max_to_keep or None
        self._seconds = None if keep_every_hours is None else keep_every_hours * _HOUR
        self.last_preserved = now
        """When the last one was kept for good, or the run began: the next one is `keep_every_hours` later."""
        self._kept: list[KeptCheckpoint] = []

    @property
    def kept(self) -> tuple[KeptCheckpoint, ...]:
        """Checkpoints that exist and may be deleted later, oldest first."""
        return tuple(self._kept)

    def recover(self, kept: Iterable[KeptCheckpoint], *, last_preserved: float | None = None) -> None:
        """Loads the checkpoints of an earlier run."""
        self._kept = list(kept)
        if last_preserved is not None:
            self.last_preserved = last_preserved

    def record(self, path: str, time: float, *, exempt: Collection[str] = ()) -> list[str]:
        """Records a committed checkpoint; returns those to delete now."""
        self._kept = [each for each in self._kept if each.path != path] + [KeptCheckpoint(path, time)]
        counted = [each for each in self._kept if each.path not in exempt]
        surplus = counted[: -self._max_to_keep] if self._max_to_keep else []
        gone = {each.path for each in surplus}
        self._kept = [each for each in self._kept if each.path not in gone]
        return [each.path for each in surplus if not self._preserve(each)]

    def _preserve(self, checkpoint: KeptCheckpoint) -> bool:
        """Returns whether a checkpoint is kept for good; it then leaves the list, since its fate is decided."""
        if self._seconds is None or checkpoint.time <= self.last_preserved + self._seconds:
            return False
        self.last_preserved += self._seconds
        return True
