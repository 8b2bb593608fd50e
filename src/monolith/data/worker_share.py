"""Which worker of how many reads a dataset, as passed by a runner to `Dataset.for_worker`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from monolith.data.dataset import Dataset
from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.data.file_queue.feed import Files
    from monolith.data.sources.file_set import FileSet

__all__ = ["WorkerShare"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """One worker of several that read the same input."""

    index: int
    count: int
    """Shares that the input has; a worker whose number is not below it has none."""
    queue: Callable[[FileSet], Files] | None = None
    """Returns the worker's files from a queue that all workers share; None: every worker has a fixed share."""

    def share_of(self, dataset: Dataset[T]) -> Dataset[T]:
        """Returns the share of a dataset; nothing, where there are more workers than shares."""
        return dataset.share(self.index, self.count) if self.index < self.count else dataset.take(0)

    def require_shareable(self, dataset: Dataset[Any]) -> None:
        """Refuses a dataset of the user's own that does not define `Dataset.share`.

        Raises:
            InvalidArgumentError: the dataset does not define it; the message gives a fix.
        """
        kind = type(dataset)
        if kind.share is Dataset.share:
            raise InvalidArgumentError(
                f"input: {kind.__name__} does not define how {self.count} workers share it, and each would train on"
                f" all of it; define {kind.__name__}.share(index, count), or return dataset.share(*self.ctx.shares)"
                f" from input_fn, which reads every {self.count}th element"
            )
