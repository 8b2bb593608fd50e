"""A small task with a planted rule to learn, for tests and as an example."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from monolith.data import Batch, Dataset, Reading
from monolith.errors import InvalidArgumentError
from monolith.nn import Embeddings, Slot
from monolith.train import Spec, Task

if TYPE_CHECKING:
    from monolith.train import Mode
    from monolith.train.parameters import InstantiableParams


class NumberedBatches(Dataset[Batch]):
    """Batches of generated clicks; each is determined by its number, so a position is that number.

    Columns: ``user`` and ``item`` int64 [B], ``label`` float32 [B], ``req_time`` int64 [B], one minute per batch.

    >>> reading = NumberedBatches(num_batches=2, batch_size=4).read(b"1")
    >>> next(reading), reading.position
    (Batch(4 rows: user, item, label, req_time), b'2')
    """

    def __init__(self, *, num_batches: int, batch_size: int = 32, num_ids: int = 1000) -> None:
        self.num_batches = num_batches
        self.batch_size = batch_size
        self.num_ids = num_ids

    def make(self, number: int) -> Batch:
        """Returns the batch of this number."""
        random = torch.Generator().manual_seed(number)
        user, item = torch.randint(self.num_ids, (2, self.batch_size), generator=random)
        label = (user % 10 + item % 10 >= 10).float()
        times = torch.full((self.batch_size,), 1_700_000_000 + 60 * number)
        return Batch({"user": user, "item": item, "label": label, "req_time": times}, num_rows=self.batch_size)

    def read(self, position: bytes | None = None) -> Reading[Batch]:
        """Reads from the batch that the position names."""
        if position is not None and not position.isdigit():
            raise InvalidArgumentError(f"NumberedBatches: a position is a number, got {position!r}")
        return _NumberedReading(self, int(position or 0))

    def share(self, index: int, count: int) -> Dataset[Batch]:
        """Returns every `count`-th batch."""
        return super().share(index, count)


class _NumberedReading(Reading[Batch]):
    def __init__(self, dataset: NumberedBatches, number: int) -> None:
        self._dataset = dataset
        self._number = number

    def __next__(self) -> Batch:
        if self._number >= self._dataset.num_batches:
            raise StopIteration
        self._number += 1
        return self._dataset.make(self._number - 1)

    @property
    def position(self) -> bytes:
        return str(self._number).encode()

    def close(self) -> None:
        pass


class ExampleTask(Task):
    """Predicts clicks of users on items with two embeddings and one layer.

    >>> task = ExampleTask()
    >>> task.p.num_batches = 3
    >>> sum(batch.num_rows for batch in task.input_fn("train"))
    96
    """

    @classmethod
    def params(cls) -> InstantiableParams:
        """Returns the parameters, with the size of its input."""
        p = super().params()
        p.define("num_batches", 20, "Batches of the input.")
        p.define("batch_size", 32, "Examples of a batch.")
        p.define("dim", 4, "Floats of an embedding.")
        return p

    def build(self) -> None:
        """Creates embeddings and a layer over them."""
        dim = self.p.dim
        self.emb = Embeddings({"user": Slot(dim=dim), "item": Slot(dim=dim, expire_days=1)})
        self.top = nn.Linear(2 * dim, 1)

    def input_fn(self, mode: Mode) -> NumberedBatches:  # noqa: ARG002 - the same clicks for all
        """Returns clicks."""
        return NumberedBatches(num_batches=self.p.num_batches, batch_size=self.p.batch_size)

    def model_fn(self, features: Any, mode: Mode) -> Spec:
        """Returns the log loss of the clicks."""
        logits = self.top(self.emb(features).concat()).squeeze(1)
        if mode == "predict":
            return Spec(predictions=logits.sigmoid())
        loss = nn.functional.binary_cross_entropy_with_logits(logits, features["label"])
        return Spec(loss, predictions=logits.sigmoid(), label=features["label"])
