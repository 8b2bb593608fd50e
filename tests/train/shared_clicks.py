"""A task whose workers share its batches: worker i of n reads those whose number divided by n leaves i."""

from __future__ import annotations

import random
from typing import Any

from monolith.data.batch import Batch
from monolith.data.dataset import Reading
from monolith.testing import ExampleTask, NumberedBatches
from monolith.train import InstantiableParams, Mode, current_context

NUM_BATCHES = 240
_FIRST_OF_EVALUATION = 10_000


class ChosenBatches(NumberedBatches):
    """Batches of these numbers, in this order."""

    def __init__(self, numbers: list[int], *, batch_size: int = 32) -> None:
        super().__init__(num_batches=len(numbers), batch_size=batch_size, num_ids=200)
        self._numbers = numbers

    def make(self, number: int) -> Batch:
        return super().make(self._numbers[number])

    def read(self, position: bytes | None = None) -> Reading[Batch]:
        return super().read(position)


class SharedClicks(ExampleTask):
    """Clicks; `order_seed` makes one process read them in the order in which two workers might."""

    @classmethod
    def params(cls) -> InstantiableParams:
        p = super().params()
        p.define("order_seed", None, "Of the order in which one process reads the shares of two; None: as numbered.")
        return p

    def input_fn(self, mode: Mode) -> ChosenBatches:
        if mode != "train":
            return ChosenBatches(list(range(_FIRST_OF_EVALUATION, _FIRST_OF_EVALUATION + 40)))
        if self.p.order_seed is not None:
            return ChosenBatches(merged(self.p.order_seed))
        context = current_context()
        return ChosenBatches(list(range(context.worker_index, NUM_BATCHES, context.num_workers)))


def merged(seed: int) -> list[int]:
    """The shares of two workers, each in its order, in a random order among each other."""
    draw = random.Random(seed)  # noqa: S311 - an order, no secret
    turns: list[int] = [0, 1] * (NUM_BATCHES // 2)
    draw.shuffle(turns)
    shares: list[Any] = [iter(range(worker, NUM_BATCHES, 2)) for worker in (0, 1)]
    return [next(shares[worker]) for worker in turns]
