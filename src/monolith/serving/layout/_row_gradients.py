"""Converts the gradients of the outputs of a layout to gradients of the rows of one batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from monolith import _core
from monolith.data.protos.example_pb2 import OutType
from monolith.export.layout_spec import POOLINGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from monolith.export.layout_spec import FeatureSpec
    from monolith.serving.layout.layout import Layout
    from monolith.tables.batch import BatchStamp
    from monolith.tables.local.joined import LocalWorkerSession
    from monolith.tables.local.plan import LocalPlan

_BY_SPLITS = -1


def feature_gradients(
    layout: Layout, num_examples: int, keys: Sequence[tuple[NDArray[Any], ...]], gradients: Sequence[Tensor | None]
) -> list[NDArray[np.float32]]:
    """Returns the gradients [B, width] of the pooled rows of each feature, summed over all outputs in order.

    If all examples share one list, the first row holds the sum over them, and the others are zero.
    """
    found = [
        np.zeros(
            (num_examples, feature.max_sequence_length if feature.pooling == "firstn" else 1, feature.dim), np.float32
        )
        for feature in layout.features
    ]
    for output, gradient in zip(layout.outputs, gradients, strict=True):
        if gradient is None:
            continue
        rest = gradient.detach().contiguous().numpy()
        first = 0
        for place, cut in enumerate(output.cuts):
            own = found[cut.feature]
            if output.form == OutType.STACK:
                part = rest[:, place]
            else:
                part = rest[..., first : first + cut.dim]
                first += 0 if output.form == OutType.ADDN else cut.dim
            own[:, :, cut.start : cut.end] += part.reshape(num_examples, own.shape[1], cut.dim)
    for own, (_, _, splits) in zip(found, keys, strict=True):
        if len(splits) == 2 and num_examples > 1:
            total = np.add.reduce(own, axis=0)
            own[:] = 0.0
            own[0] = total
    return [own.reshape(num_examples, -1) for own in found]


@dataclass(frozen=True, slots=True)
class StoreBatch:
    """The part of a batch that belongs to one store."""

    store: str
    plan: LocalPlan
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
        joined: LocalWorkerSession,
        stamp: BatchStamp,
    ) -> Self | None:
        """Plans the keys of a store's features; None if it has none, or there is no example."""
        native = layout.stores[store].native
        tables = [native.number_of(feature.table) if feature.store == store else -1 for feature in layout.features]
        own = sorted((number for number, table in enumerate(tables) if table >= 0), key=tables.__getitem__)
        if not own or num_examples == 0:
            return None
        flat = np.concatenate([keys[number][0] for number in own])
        buckets = np.concatenate([keys[number][1] for number in own])
        sizes = np.zeros(len(native), np.int64)
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
        return cls(store, plan, tuple(own), _pooled_layout(layout, own, tables, native.dims), num_examples, splits)

    def sum_gradients(self, of_features: Sequence[NDArray[np.float32]]) -> Tensor:
        """Returns float32 [V], the gradients of the rows of the plan, from those of all features."""
        sums = np.zeros(self.plan.num_values, np.float32)
        per_example = np.full(len(self._features), _BY_SPLITS, np.int64)
        core = self.plan.core
        rows = [of_features[number] for number in self._features]
        self._pooled.sum_gradients(
            self._num_examples, per_example, self._row_splits, core.splits, core.inverse, rows, sums, core
        )
        return torch.from_numpy(sums)


def _places_of(feature: FeatureSpec) -> int:
    return feature.max_sequence_length if feature.pooling == "firstn" else 0


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
    places = [_places_of(feature) for feature in features]
    widths = [feature.dim * max(1, each) for feature, each in zip(features, places, strict=True)]
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
