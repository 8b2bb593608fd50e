"""Sources of training data: `Dataset`, and one pass over it, `Reading`, which always has a position.

Everything that yields samples or batches is a dataset: sources and what is built on them. A position is opaque: bytes
that only a dataset of the same construction understands. It is after the element that was returned last, whatever is
buffered below; reading from it returns every later element once.

    dataset = RecordDataset("clicks/*", "tfrecord").shuffle(10_000, seed=1).batch(256).parse(parser).prefetch(2)

Each method returns a new dataset and does not change its own. `monolith.data.pipeline` documents them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from torch.utils.data import IterableDataset, get_worker_info

from monolith.data.pipeline.elements import Map, MarkLast, Parsing, RowFilter, Share, Skip, Take
from monolith.data.pipeline.passes import Cache, Prefetch, Repeat
from monolith.data.pipeline.split import Deduplicate, Split, check_ratios
from monolith.data.pipeline.stage import KnownLength, Reading
from monolith.data.pipeline.windows import MergedWindow, Rebatch, Shuffle
from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from monolith.data.batch import Batch
    from monolith.data.pipeline.elements import RecordParser
    from monolith.data.pipeline.stage import Stage
    from monolith.data.records.records import Records
    from monolith.data.sources.file_set import Files, FileSet

S = TypeVar("S")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

__all__ = ["Dataset", "Reading", "WorkerShare"]


class Dataset(IterableDataset[T_co], ABC):
    """Elements in an order that depends on its arguments alone. It may be read many times; readings are independent.

    A ``torch.utils.data.DataLoader`` takes it with ``batch_size=None``; each of its worker processes reads its share.
    """

    @abstractmethod
    def read(self, position: bytes | None = None) -> Reading[T_co]:
        """Starts to read from the beginning, or from a position of a reading of an equal dataset.

        Raises:
            InvalidArgumentError: the position is not of such a dataset; the message gives the difference.
        """

    @property
    def is_replayable(self) -> bool:
        """Whether reading again from a position returns the same elements; stages that buffer rows rely on it."""
        return True

    def _require_replayable(self, what: str) -> None:
        if not self.is_replayable:
            raise InvalidArgumentError(
                f"{what}: a restart would lose and double rows, as messages come in another order when they are read "
                'again; give the topics order="fixed", or, for batch, call it on the KafkaDataset itself; '
                "examples of a stream come in batches already, of the size that ctx.examples was given"
            )

    def for_epoch(self, epoch: int) -> Dataset[T_co]:  # noqa: ARG002 - for those whose order depends on it
        """Returns the dataset of a pass of `repeat`, counted from 0: stages that shuffle use another order."""
        return self

    def __iter__(self) -> Reading[T_co]:
        worker = get_worker_info()
        return self.read() if worker is None else self.share(worker.id, worker.num_workers).read()

    def share(self, index: int, count: int) -> Dataset[T_co]:
        """Returns the share of one of `count` workers: all of them together read every row once.

        Complete files if there are enough, otherwise a part of each file if its format can be split, otherwise every
        `count`-th block; batches are then made of the share. A subclass that does not define it returns every
        `count`-th element, and is shared only by an explicit call: a runner does not do it by itself.
        """
        return _Derived(self, Share(index, count))

    @property
    def is_share(self) -> bool:
        """Whether it was limited to the share of one worker, by `share` or by files or partitions of this worker."""
        return False

    def sources(self) -> Iterator[Dataset[Any]]:
        """Yields the datasets that it is read from, or itself; an explicit share counts as a source."""
        yield self

    def for_worker(self, worker: WorkerShare) -> Dataset[T_co]:
        """Returns what a runner's worker reads: its share of each source that is not a share already.

        Raises:
            InvalidArgumentError: a source does not define how workers share it.
        """
        if self.is_share:
            return self
        worker.require_shareable(self)
        return worker.share_of(self)

    def known_length(self) -> KnownLength:
        """Returns the number of elements and rows, as far as known without reading them."""
        return KnownLength()

    def __len__(self) -> int:
        elements = self.known_length().elements
        if elements is None:
            raise TypeError(f"{self!r}: how many elements there are is not known before they are read")
        return elements

    def __bool__(self) -> bool:
        return True  # not whether it has elements: that may be unknown

    def map(self, function: Callable[[T_co], T | None]) -> Dataset[T]:
        """Applies a function to each element, such as a transform of batches; None drops the element."""
        return _Derived(self, Map(function))

    def filter(self, predicate: Callable[[T_co], Any]) -> Dataset[T_co]:
        """Keeps the elements for which the predicate is true, or the rows of its bool mask in `Batch` or `Records`."""
        return _Derived(self, Map(RowFilter(predicate)))

    def parse(self: Dataset[Records], parser: RecordParser) -> Dataset[Batch]:
        """Parses each block of records into a `Batch`; skips blocks without a valid record."""
        return _Derived(self, Map(Parsing(parser)))

    def batch(self, size: int, *, drop_remainder: bool = False) -> Dataset[Any]:
        """Blocks of exactly `size` rows, across the blocks that they come in; the last one as large as it comes.

        `Batch` gives `Batch`, `Records` give `Records`, and other elements lists of them.
        """
        self._require_replayable("batch")
        return _Derived(self, Rebatch(size, drop_remainder=drop_remainder))

    def shuffle(self, rows: int, *, seed: int = 0) -> Dataset[T_co]:
        """Rows in random order within windows of `rows` rows, which memory holds; another order in each epoch."""
        self._require_replayable("shuffle")
        return _Derived(self, Shuffle(rows, seed=seed))

    def take(self, count: int) -> Dataset[T_co]:
        """Keeps the first `count` elements."""
        return _Derived(self, Take(count))

    def skip(self, count: int) -> Dataset[T_co]:
        """Skips the first `count` elements."""
        return _Derived(self, Skip(count))

    def repeat(self, epochs: int | None = None) -> Dataset[T_co]:
        """Repeats the data `epochs` times, each in its own order if something shuffles; None: forever."""
        return _Derived(self, Repeat(epochs))

    def cache(self) -> Dataset[T_co]:
        """Keeps the elements in memory after the first complete pass."""
        return _Derived(self, Cache())

    def split(self, ratios: Sequence[float], *, seed: int = 0, by: str | None = None) -> tuple[Dataset[T_co], ...]:
        """Returns disjoint datasets, one for each ratio: by the value of a column, or by the index in the stream."""
        self._require_replayable("split")
        parts = range(len(check_ratios("split", ratios)))
        return tuple(_Derived(self, Split(ratios, part, seed=seed, by=by)) for part in parts)

    def merged_window(self, size: int) -> Dataset[Any]:
        """Joins the rows of `size` batches at a time into one batch; the last one may have fewer."""
        return _Derived(self, MergedWindow(size))

    def deduplicate(self: Dataset[Batch], columns: str | Sequence[str], *, window: int) -> Dataset[Batch]:
        """Drops rows that are equal in these columns to one of the last `window` rows."""
        self._require_replayable("deduplicate")
        return _Derived(self, Deduplicate(columns, window))

    def mark_last(self) -> Dataset[tuple[T_co, bool]]:
        """Pairs of an element and whether it is the last one, so that workers can stop together."""
        return _Derived(self, MarkLast())

    def prefetch(self, capacity: int, *, name: str = "prefetch") -> Dataset[T_co]:
        """Prefetches up to `capacity` elements in a thread; positions do not run ahead."""
        return _Derived(self, Prefetch(capacity, name=name))


class _Derived(Dataset[T], Generic[S, T]):
    """A stage over a source."""

    def __init__(self, source: Dataset[S], stage: Stage[S, T]) -> None:
        self._source = source
        self._stage = stage

    @property
    def is_replayable(self) -> bool:
        return self._source.is_replayable

    def read(self, position: bytes | None = None) -> Reading[T]:
        return self._stage.read(self._source, position)

    def share(self, index: int, count: int) -> Dataset[T]:
        if not self._stage.works_on_shares:
            return super().share(index, count)
        return _Derived(self._source.share(index, count), self._stage)

    @property
    def is_share(self) -> bool:
        return self._stage.makes_share or self._source.is_share

    def sources(self) -> Iterator[Dataset[Any]]:
        return iter([self]) if self._stage.makes_share else self._source.sources()

    def for_worker(self, worker: WorkerShare) -> Dataset[T]:
        if self._stage.makes_share:
            return self
        if self._stage.works_on_shares:
            return _Derived(self._source.for_worker(worker), self._stage)
        sources = list(self.sources())
        if all(source.is_share for source in sources):
            return self
        if any(source.is_share for source in sources):
            raise InvalidArgumentError(
                f"{self!r}: some of what it reads is the share of one worker and some is not, and {self._stage!r} needs"
                " all of it or shares of all; call .share(*self.ctx.shares) on each, or on none"
            )
        for source in sources:
            worker.require_shareable(source)
        return worker.share_of(self)

    def known_length(self) -> KnownLength:
        return self._stage.known(self._source.known_length())

    def __repr__(self) -> str:
        return f"{self._source!r}.{self._stage!r}"

    def for_epoch(self, epoch: int) -> Dataset[T]:
        return _Derived(self._source.for_epoch(epoch), self._stage.for_epoch(epoch))


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
