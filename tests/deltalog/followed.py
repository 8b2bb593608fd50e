"""A follower of the log of a small task, and what the last checkpoint of a run would serve."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from monolith.online import Follower
from monolith.tables import LocalStore
from monolith.testing import ExampleTask
from monolith.train import Session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from monolith.train import Task, Trainer


def serving_rows(store: Any) -> list[tuple[object, ...]]:
    """Everything that serving sees of a store: keys, times and compressed bytes."""
    with store.cut() as cut:
        found = [
            (block.table, block.bucket, int(key), int(time), bytes(row))
            for block in cut.blocks(range(1024), state=False)
            if block.kind.name == "SERVING"
            for key, time, row in zip(block.keys, block.times, block.payload, strict=True)
        ]
    return sorted(found)


class Followed:
    """A follower of the log of a job, with tables of the job's model."""

    def __init__(self, log: str, task: type[Task] = ExampleTask) -> None:
        with Session(task()) as session:
            self.name, trained = next(iter(session.state.stores.items()))
            self.weights = set(dict(session.state.model.named_parameters()))  # type: ignore[union-attr]
            assert isinstance(trained, LocalStore)
            self.store = LocalStore({each.name: replace(each, serving=True) for each in trained.native.configs})
        self.dense: dict[str, Tensor] = {}
        self.follower = Follower({self.name: self.store}, log, on_dense=self._take)
        self.versions: list[dict[str, int]] = []

    def _take(self, found: Mapping[str, Tensor]) -> None:
        self.dense = dict(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.follower.close()
        self.store.close()

    def catch_up(self) -> list[tuple[object, ...]]:
        self.follower.catch_up()
        self.versions.append(self.follower.version)
        return serving_rows(self.store)


def saved_rows(trainer: Trainer) -> list[tuple[object, ...]]:
    """Those of the last checkpoint."""
    trainer.evaluate(steps=1)
    assert trainer.state is not None
    return serving_rows(next(iter(trainer.state.stores.values())))
