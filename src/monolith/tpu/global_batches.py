"""The batches of all replicas as one, which is then divided among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from monolith.data.batch import Batch
from monolith.data.dataset import Dataset, Reading
from monolith.data.rows import join_rows
from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["GlobalBatches", "global_batches"]


def global_batches(source: Dataset[Any] | Iterable[Any], count: int) -> Dataset[Any] | Iterable[Any]:
    """Returns the rows of `count` batches at a time; the last one may have fewer.

    Raises:
        InvalidArgumentError: the source is not a `Dataset`, and there is more than one replica.
    """
    if count == 1:
        return source
    if not isinstance(source, Dataset):
        raise InvalidArgumentError(
            f"tpu: input_fn must return a Dataset, whose batches can be joined for {count} replicas, got"
            f" {type(source).__name__}; monolith.data.InMemoryDataset makes one of a list"
        )
    return GlobalBatches(source, count)


class GlobalBatches(Dataset[Batch]):
    """Concatenates the rows of `count` batches of a dataset at a time.

    Positions are those of the dataset, so that a run with another number of replicas, or without replicas, can resume
    from them.

    Args:
        source: Batches of one replica.
        count: Number of replicas.
    """

    def __init__(self, source: Dataset[Any], count: int) -> None:
        self._source = source
        self._count = count

    def __repr__(self) -> str:
        return f"GlobalBatches({self._source!r}, {self._count})"

    def read(self, position: bytes | None = None) -> Reading[Batch]:
        """Reads from a position of the source."""
        return _GlobalReading(self._source.read(position), self._count)


class _GlobalReading(Reading[Batch]):
    def __init__(self, source: Reading[Any], count: int) -> None:
        self._source = source
        self._count = count

    def __next__(self) -> Batch:
        parts: list[Batch] = []
        for _ in range(self._count):
            try:
                parts.append(_as_batch(next(self._source)))
            except StopIteration:
                break
        if not parts:
            raise StopIteration
        joined: Batch = join_rows(parts)
        return joined

    @property
    def position(self) -> bytes:
        return self._source.position

    def close(self) -> None:
        self._source.close()


def _as_batch(element: Any) -> Batch:
    if isinstance(element, Batch):
        return element
    if isinstance(element, Mapping):
        return Batch(element)
    raise InvalidArgumentError(f"tpu: batches of columns by name expected, got {type(element).__name__}")
