"""A task whose rows expire while it trains."""

from __future__ import annotations

from typing import Any

from monolith.data import Batch
from monolith.testing import ExampleTask

DAY = 24 * 3600
ITEMS_OF_A_DAY = 10_000


class DayByDay(ExampleTask):
    """Each step is a day after the last one, with items of its own, which live for a day; users stay."""

    def input_fn(self, mode: Any) -> Any:
        clicks = super().input_fn(mode)
        make = clicks.make

        def make_day(number: int) -> Any:
            batch: dict[str, Any] = dict(make(number))
            batch["req_time"] = batch["req_time"] + DAY * number
            batch["item"] = batch["item"] + ITEMS_OF_A_DAY * number
            return Batch(batch, num_rows=clicks.batch_size)

        clicks.make = make_day  # type: ignore[method-assign]
        return clicks
