"""Trainable layouts: apply the gradients of their outputs to the rows.

Gradients of an output: SUM copies the gradient to every id, MEAN divides it by their number, a sequence passes position
j to id j. The gradient of a list that all examples share is summed over them, in order. Rows that occur several times
get the sum, in the order of the features and of their ids, so results do not depend on threads::

    trained = TrainedLayout(layout)
    inputs = trained.from_bytes(data, "example_batch").inputs
    model(inputs).backward()
    trained.step()
"""

from __future__ import annotations

import time as clock
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from monolith import _core
from monolith.data.protos.example_pb2 import OutType
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.export import POOLINGS
from monolith.serving.layout._outputs import num_places
from monolith.tables import Applied, BatchStamp, Plan, ServingRows, Update, WorkerSession

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from monolith.serving.layout.layout import LaidOut, Layout, SampleForm


@runtime_checkable
class TrainedRows(ServingRows, Protocol):
    """What a `TrainedLayout` needs of its stores."""

    def learning_rates_at(self, step: int) -> Tensor:
        """Returns float32 [S]: the rates of the tables' optimizers, one per segment."""


class TrainedLayout:
    """A layout over training rows whose outputs are differentiable. Not thread-safe.

    Args:
        layout: Its stores must hold training rows.
        worker: Number of this worker at the stores; unique for each worker.

    Raises:
        InvalidArgumentError: the number is negative, or a store cannot be trained so.
    """

    def __init__(self, layout: Layout, *, worker: int = 0) -> None:
        self.layout = layout
        self.global_step = 0
        self._stores: dict[str, TrainedRows] = {}
        for name, store in layout.stores.items():
            if not isinstance(store, TrainedRows):
                raise InvalidArgumentError(f"store {name!r}: {type(store).__name__} has no learning_rates_at")
            self._stores[name] = store
        self._joined = {name: store.join(worker) for name, store in self._stores.items()}
        self._next_seq = {name: joined.next_seq for name, joined in self._joined.items()}
        self._anchor = torch.zeros((), requires_grad=True)
        self._passes: list[tuple[StoreBatch, Tensor]] = []

    def from_bytes(self, data: bytes | Sequence[bytes], form: SampleForm) -> LaidOut:
        """Converts samples like `Layout.from_bytes`; the pooled rows are differentiable."""
        laid_out = self.layout.from_bytes(data, form, step=self.global_step)
        return self._differentiable(laid_out, self.layout.keys_of_bytes(data, form))

    def from_columns(self, columns: Mapping[str, object]) -> LaidOut:
        """Converts columns like `Layout.from_columns`; the pooled rows are differentiable."""
        laid_out = self.layout.from_columns(columns, step=self.global_step)
        return self._differentiable(laid_out, self.layout.keys_of_columns(columns))

    def step(self, *, time: int | None = None) -> dict[str, Applied]:
        """Applies one optimizer step to all ids of the backward passes since the last step, at the tables' rates.

        Args:
            time: When the examples were seen, Unix seconds; None: now.

        Returns:
            Store -> number of its rows that were updated or created.

        Raises:
            FailedPreconditionError: there was no backward pass.
            InvalidArgumentError: a gradient is not finite, and a table rejects those; its store is unchanged.
        """
        if not self._passes:
            raise FailedPreconditionError("step: there was no backward pass since the last one")
        passes, self._passes = self._passes, []
        moment = int(clock.time()) if time is None else time
        applied: dict[str, Applied] = {}
        for name, joined in self._joined.items():
            updates = [(batch.plan, gradient) for batch, gradient in passes if batch.store == name]
            rule = Update(
                previous=self._next_seq[name] - 1,
                step=self.global_step,
                learning_rates=self._stores[name].learning_rates_at(self.global_step),
                times=moment,
            )
            if updates:
                applied[name] = joined.apply(updates, rule).result()
                self._next_seq[name] += len(updates)
        self.global_step += 1
        return applied

    def _differentiable(self, laid_out: LaidOut, keys: Sequence[tuple[NDArray[Any], ...]]) -> LaidOut:
        names = [output.name for output in self.layout.outputs]
        looked_up = [laid_out.inputs[name] for name in names]
        outputs = _Lookup.apply(self._anchor, self, laid_out.num_examples, keys, *looked_up)  # type: ignore[no-untyped-call]
        inputs = laid_out.inputs | dict(zip(names, cast("tuple[Tensor, ...]", outputs), strict=True))
        return laid_out._replace(inputs=inputs)

    def take(
        self, num_examples: int, keys: Sequence[tuple[NDArray[Any], ...]], gradients: Sequence[Tensor | None]
    ) -> None:
        """Stores the row gradients of a backward pass; `gradients` are those of the outputs, None for zeros."""
        of_features = feature_gradients(self.layout, num_examples, keys, gradients)
        for name, joined in self._joined.items():
            taken = sum(batch.store == name for batch, _ in self._passes)
            stamp = BatchStamp(worker=joined.worker, seq=self._next_seq[name] + taken)
            batch = StoreBatch.of(self.layout, name, keys, num_examples, joined, stamp)
            if batch is not None:
                gradient = batch.sum_gradients(of_features).to(self._stores[name].traits.device)
                self._passes.append((batch, gradient))


class _Lookup(torch.autograd.Function):
    """Autograd function that passes the gradients of looked-up outputs to the rows."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,  # noqa: ARG004 - makes the outputs differentiable
        trained: TrainedLayout,
        num_examples: int,
        keys: Sequence[tuple[NDArray[Any], ...]],
        *outputs: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.trained, ctx.num_examples, ctx.keys = trained, num_examples, keys
        ctx.set_materialize_grads(False)
        return tuple(output.view_as(output) for output in outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.trained.take(ctx.num_examples, ctx.keys, gradients)
        return (torch.zeros(()), None, None, None, *[None] * len(gradients))


_BY_SPLITS = -1


def feature_gradients(
    layout: Layout, num_examples: int, keys: Sequence[tuple[NDArray[Any], ...]], gradients: Sequence[Tensor | None]
) -> list[NDArray[np.float32]]:
    """Returns the gradients [B, width] of the pooled rows of each feature, summed over all outputs in order.

    If all examples share one list, the first row holds the sum over them, and the others are zero.
    """
    by_feature = [
        np.zeros((num_examples, max(1, num_places(feature)), feature.dim), np.float32) for feature in layout.features
    ]
    for output, gradient in zip(layout.outputs, gradients, strict=True):
        if gradient is None:
            continue
        rest = gradient.detach().contiguous().numpy()
        first = 0
        for place, cut in enumerate(output.cuts):
            own = by_feature[cut.feature]
            if output.form == OutType.STACK:
                part = rest[:, place]
            else:
                part = rest[..., first : first + cut.dim]
                first += 0 if output.form == OutType.ADDN else cut.dim
            own[:, :, cut.start : cut.end] += part.reshape(num_examples, own.shape[1], cut.dim)
    for own, (_, _, splits) in zip(by_feature, keys, strict=True):
        if len(splits) == 2 and num_examples > 1:
            total = np.add.reduce(own, axis=0)
            own[:] = 0.0
            own[0] = total
    return [own.reshape(num_examples, -1) for own in by_feature]


@dataclass(frozen=True, slots=True)
class StoreBatch:
    """The part of a batch that belongs to one store."""

    store: str
    plan: Plan
    _features: tuple[int, ...]
    """Numbers of the store's features, by table."""
    _pooled: _core.PooledLayout
    _num_examples: int
    _row_splits: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        layout: Layout,
        store: str,
        keys: Sequence[tuple[NDArray[Any], ...]],
        num_examples: int,
        joined: WorkerSession,
        stamp: BatchStamp,
    ) -> Self | None:
        """Plans the keys of a store's features; None if it has none, or there is no example."""
        schema = layout.stores[store].schema
        tables = [schema.number_of(feature.table) if feature.store == store else -1 for feature in layout.features]
        own = sorted((number for number, table in enumerate(tables) if table >= 0), key=tables.__getitem__)
        if not own or num_examples == 0:
            return None
        flat = np.concatenate([keys[number][0] for number in own])
        buckets = np.concatenate([keys[number][1] for number in own])
        sizes = np.zeros(len(schema.tables), np.int64)
        for number in own:
            sizes[tables[number]] += len(keys[number][0])
        table_splits = np.concatenate([[0], np.cumsum(sizes)])
        plan = joined.plan(
            torch.from_numpy(flat),
            torch.from_numpy(table_splits),
            stamp=stamp,
            buckets=torch.from_numpy(buckets.view(np.int16)),
        )
        splits = np.concatenate([_for_all(keys[number][2], num_examples) for number in own])
        return cls(store, plan, tuple(own), _pooled_layout(layout, own, tables, schema.dims), num_examples, splits)

    def sum_gradients(self, of_features: Sequence[NDArray[np.float32]]) -> Tensor:
        """Returns float32 [V], the gradients of the rows of the plan, from those of all features."""
        sums = np.zeros(self.plan.num_values, np.float32)
        per_example = np.full(len(self._features), _BY_SPLITS, np.int64)
        splits, inverse = self.plan.splits.numpy(), self.plan.inverse.numpy()
        rows = [of_features[number] for number in self._features]
        self._pooled.sum_gradients(
            self._num_examples, per_example, self._row_splits, splits, inverse, rows, sums, self.plan.core
        )
        return torch.from_numpy(sums)


def _for_all(splits: NDArray[np.int64], num_examples: int) -> NDArray[np.int64]:
    """Returns splits [B + 1]; the ids of a shared list are assigned to the first example."""
    if len(splits) == num_examples + 1:
        return splits
    return np.concatenate([splits, np.full(num_examples - 1, splits[-1], np.int64)])


def _pooled_layout(
    layout: Layout, own: Sequence[int], tables: Sequence[int], dims: Sequence[int]
) -> _core.PooledLayout:
    """Returns the concatenated layout of the store's features in which the core sums their gradients."""
    features = [layout.features[number] for number in own]
    places = [num_places(feature) for feature in features]
    widths = [feature.dim * max(1, length) for feature, length in zip(features, places, strict=True)]
    owners = [(feature.table, feature.number) for feature in features]
    return _core.PooledLayout(
        tables=[tables[number] for number in own],
        columns=[sum(widths[:place]) for place in range(len(widths))],
        places=places,
        poolings=[POOLINGS.index(feature.pooling) for feature in features],
        owners=[owners.index(owner) for owner in owners],
        dims=list(dims),
        width=sum(widths),
    )
