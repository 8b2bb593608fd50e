"""`Dataset.mark_last`: flags with each element whether it is the last one, by reading one element ahead.

With it, workers that train in step can stop together: each gathers the others' marks, and all stop when one is set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from monolith.data.pipeline.stage import Stage, StageReading, StageSource

if TYPE_CHECKING:
    from monolith.data.pipeline.counts import KnownLength
    from monolith.data.reading import Reading

T = TypeVar("T")

__all__ = ["MarkLast"]


class MarkLast(Stage[T, tuple[T, bool]]):
    """Pairs of an element and whether it is the last one; each share has a last one of its own."""

    works_on_shares = True

    def read(self, source: StageSource[T], position: bytes | None) -> Reading[tuple[T, bool]]:
        """Starts a reading; its position is after the returned element, not after the one read ahead."""
        return _MarkLastReading(source.read(position))

    def known(self, source: KnownLength) -> KnownLength:
        """Returns the length of the source."""
        return source

    def __repr__(self) -> str:
        return "mark_last()"


class _MarkLastReading(StageReading[T, "tuple[T, bool]"]):
    def __init__(self, source: Reading[T]) -> None:
        super().__init__(source)
        self._returned_to = source.position
        self._ahead: list[T] = []

    @property
    def position(self) -> bytes:
        return self._returned_to

    def __next__(self) -> tuple[T, bool]:
        if not self._ahead:
            self._ahead.append(next(self._source))
        behind = self._source.position
        try:
            following = [next(self._source)]
        except StopIteration:
            following = []
        (element,), self._ahead = self._ahead, following
        self._returned_to = behind
        return element, not following
