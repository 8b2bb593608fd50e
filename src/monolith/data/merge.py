"""Several streams as one, in given proportions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from monolith.data.dataset import Dataset
from monolith.data.pipeline.split import check_ratios
from monolith.data.pipeline.stage import KnownLength, Reading
from monolith.data.position import SavedPosition, encode_position, nested

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from monolith.data.dataset import WorkerShare

T = TypeVar("T")

_KIND = "merge"


class MergedDataset(Dataset[T]):
    """Takes from each stream in proportion to its ratio, as evenly as can be, in the same order every time.

    The order depends on the ratios alone: the stream with the largest lag to its share is next. Elements are counted,
    not rows; give streams of batches the same size if rows are to be in proportion.

    >>> from monolith.data import InMemoryDataset
    >>> list(MergedDataset([InMemoryDataset("aaaaaa"), InMemoryDataset("bb")], ratios=[3, 1]))
    ['a', 'a', 'b', 'a', 'a', 'a', 'b', 'a']

    Args:
        datasets: The streams.
        ratios: A positive number for each; default: all equal.
        stop_at_first_end: Whether the end of any stream is the end; otherwise the remaining streams continue.
    """

    def __init__(
        self, datasets: Sequence[Dataset[T]], ratios: Sequence[float] | None = None, *, stop_at_first_end: bool = False
    ) -> None:
        self._datasets = list(datasets)
        self._ratios = check_ratios("merge", [1.0] * len(self._datasets) if ratios is None else ratios)
        if len(self._ratios) != len(self._datasets):
            got = f"{len(self._ratios)} ratios for {len(self._datasets)} datasets"
            raise ValueError(f"merge: expected a ratio for each dataset, got {got}")
        self._stop_at_first_end = stop_at_first_end

    def for_epoch(self, epoch: int) -> MergedDataset[T]:
        """Merges the streams of this epoch."""
        datasets = [dataset.for_epoch(epoch) for dataset in self._datasets]
        return MergedDataset(datasets, self._ratios, stop_at_first_end=self._stop_at_first_end)

    def share(self, index: int, count: int) -> MergedDataset[T]:
        """Merges the share of each stream."""
        datasets = [dataset.share(index, count) for dataset in self._datasets]
        return MergedDataset(datasets, self._ratios, stop_at_first_end=self._stop_at_first_end)

    @property
    def is_share(self) -> bool:
        """Whether each stream is a share."""
        return all(dataset.is_share for dataset in self._datasets)

    def sources(self) -> Iterator[Dataset[Any]]:
        """Yields the sources of each stream."""
        for dataset in self._datasets:
            yield from dataset.sources()

    def for_worker(self, worker: WorkerShare) -> MergedDataset[T]:
        """Merges the streams as read by the worker."""
        datasets = [dataset.for_worker(worker) for dataset in self._datasets]
        return MergedDataset(datasets, self._ratios, stop_at_first_end=self._stop_at_first_end)

    def known_length(self) -> KnownLength:
        """Returns the length of all streams together, unless the first end is the end."""
        known = [dataset.known_length() for dataset in self._datasets]
        if self._stop_at_first_end or any(length.elements is None for length in known):
            return KnownLength()
        has_rows = all(length.rows is not None for length in known)
        return KnownLength(
            sum(length.elements or 0 for length in known),
            sum(length.rows or 0 for length in known) if has_rows else None,
        )

    def __repr__(self) -> str:
        return f"MergedDataset([{', '.join(map(repr, self._datasets))}])"

    def read(self, position: bytes | None = None) -> Reading[T]:
        """Starts a reading; its position has that of each stream, and its number of returned elements."""
        positions: Sequence[bytes | None] = [None] * len(self._datasets)
        counts = [0] * len(self._datasets)
        if position is not None:
            saved = SavedPosition(position, _KIND).require_same(ratios=self._ratios)
            positions, counts = saved.positions("sources"), saved.values("counts")
        readings: list[Reading[T]] = []
        try:
            for dataset, start in zip(self._datasets, positions, strict=True):
                readings.append(dataset.read(start))
        except BaseException:
            for reading in readings:
                reading.close()
            raise
        return _MergedReading(readings, self._ratios, counts, self._stop_at_first_end)


class _MergedReading(Reading[T]):
    def __init__(
        self, readings: list[Reading[T]], ratios: list[float], counts: list[int], stop_at_first_end: bool
    ) -> None:
        self._readings = readings
        self._ratios = ratios
        self._counts = list(counts)
        self._open = set(range(len(readings)))
        self._stop_at_first_end = stop_at_first_end

    @property
    def position(self) -> bytes:
        sources = [nested(reading.position) for reading in self._readings]
        return encode_position(_KIND, {"counts": self._counts, "ratios": self._ratios, "sources": sources})

    def __next__(self) -> T:
        while self._open:
            index = min(self._open, key=self._next_due)
            try:
                element = next(self._readings[index])
            except StopIteration:
                self._open = set() if self._stop_at_first_end else self._open - {index}
                continue
            self._counts[index] += 1
            return element
        raise StopIteration

    def close(self) -> None:
        self._open = set()
        for reading in self._readings:
            reading.close()

    def _next_due(self, index: int) -> tuple[float, int]:
        """Returns when the next element of a stream is due, in elements of all streams; the middle of its share."""
        return (self._counts[index] + 0.5) / self._ratios[index], index
