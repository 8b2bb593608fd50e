"""Pools the rows of a request on their device, by operations of torch: for stores whose rows are not in the core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch.nn.functional import embedding_bag

from monolith.data.protos.example_pb2 import OutType
from monolith.errors import ResourceExhaustedError
from monolith.serving.layout._outputs import LayoutOutput, num_places
from monolith.tables import KeyedRows, ServingRows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from monolith import _core
    from monolith.export import FeatureSpec

FeatureKeys: TypeAlias = "tuple[NDArray[np.int64], NDArray[np.uint16], NDArray[np.int64]]"
"""Keys, buckets and row splits of a feature; a list that all examples share is one row."""


class DevicePooling:
    """Has the calls of `_core.InputLayout` that read rows; makes one transfer to the host for each store.

    Thread-safe. Sums follow the order of the ids on a CPU, and the order of the device elsewhere.

    Args:
        layouts: The layout, which parses requests and returns their keys; and one of the columns of numbers only.
        features: The features.
        outputs: The outputs of the layout.
        stores: Stores by name.
        max_output_bytes: Maximum size of all outputs.
    """

    def __init__(
        self,
        layouts: tuple[_core.InputLayout, _core.InputLayout],
        features: Sequence[FeatureSpec],
        outputs: Sequence[LayoutOutput],
        stores: Mapping[str, ServingRows],
        *,
        max_output_bytes: int,
    ) -> None:
        self._layout, self._numbers = layouts
        self._outputs = outputs
        self._max_output_bytes = max_output_bytes
        self._width = sum(output.width for output in outputs)
        own = {name: [entry for entry in enumerate(features) if entry[1].store == name] for name in stores}
        self._parts = [_StorePart(stores[name], of_store) for name, of_store in own.items() if of_store]

    def from_records(self, form: int, records: tuple[bytes, ...], _: object, step: int) -> tuple[Any, ...]:
        """Returns the numbers of examples, ids and found ids of samples, the floats of all outputs, and the numbers."""
        keys = self._layout.keys_of_records(form, records)
        num_examples, *_rest, numbers = self._numbers.from_records(form, records, (), step)
        return (*self._lay_out(keys, num_examples, step), numbers)

    def from_columns(
        self, columns: Sequence[tuple[int, int, int, int, int]], num_examples: int, _: object, step: int
    ) -> tuple[Any, ...]:
        """Like `from_records`, for columns of ids."""
        return (*self._lay_out(self._layout.keys_of_columns(columns), num_examples, step), None)

    def _lay_out(
        self, keys: Sequence[FeatureKeys], num_examples: int, step: int
    ) -> tuple[int, int, int, NDArray[np.float32]]:
        most = self._max_output_bytes // (4 * max(1, self._width))
        if num_examples > most:
            raise ResourceExhaustedError(
                f"a request of {num_examples} examples, {most} fill the {self._max_output_bytes} bytes that outputs may"
                " have (max_output_bytes); request fewer examples"
            )
        if num_examples == 0 or not self._parts:
            return num_examples, 0, 0, np.empty(0, np.float32)
        pooled: dict[int, Tensor] = {}
        num_found = sum(part.pool(keys, pooled, step=step) for part in self._parts)
        floats = torch.cat([self._output(output, pooled, num_examples).reshape(-1) for output in self._outputs])
        return num_examples, sum(len(own) for own, _, _ in keys), num_found, floats.numpy()

    def _output(self, output: LayoutOutput, pooled: Mapping[int, Tensor], num_examples: int) -> Tensor:
        slices = [pooled[cut.feature][..., cut.start : cut.end].expand(num_examples, -1, -1) for cut in output.cuts]
        if output.form == OutType.STACK:
            return torch.stack(slices, dim=1)
        if output.form == OutType.ADDN:
            total = slices[0].clone()
            for more in slices[1:]:
                total += more
            return total
        return torch.cat(slices, dim=2)


class _StorePart:
    """The features of one store."""

    def __init__(self, store: ServingRows, features: Sequence[tuple[int, FeatureSpec]]) -> None:
        tables = {feature.table: store.schema.number_of(feature.table) for _, feature in features}
        self._store = store
        self._features = sorted(features, key=lambda entry: tables[entry[1].table])
        self._tables = [tables[feature.table] for _, feature in self._features]
        self._follows_keys = not any(store.schema.tables[table].wide_slots for table in self._tables)

    def pool(self, keys: Sequence[FeatureKeys], pooled: dict[int, Tensor], *, step: int) -> int:
        """Adds [rows, places, dim] of each feature, on the host; returns the number of ids with a row."""
        own = [keys[number] for number, _ in self._features]
        sizes = np.zeros(len(self._store.schema.tables), np.int64)
        np.add.at(sizes, self._tables, [len(feature_keys) for feature_keys, _, _ in own])
        flat, buckets = (np.concatenate([entry[part] for entry in own]) for part in (0, 1))
        keyed = KeyedRows(flat, np.concatenate([[0], np.cumsum(sizes)]), buckets, self._follows_keys)
        found = self._store.lookup(keyed, step=step)
        dims = [feature.dim for _, feature in self._features]
        counts = [len(entry[0]) * dim for entry, dim in zip(own, dims, strict=True)]
        values = found.values.split_with_sizes(counts)
        parts = [
            _pooled(feature, rows.view(-1, dim), splits)
            for (_, feature), dim, rows, (_, _, splits) in zip(self._features, dims, values, own, strict=True)
        ]
        host = torch.cat([part.reshape(-1) for part in parts]).cpu()
        for (number, feature), flat_part in zip(
            self._features, host.split_with_sizes([part.numel() for part in parts]), strict=True
        ):
            pooled[number] = flat_part.view(-1, max(1, num_places(feature)), feature.dim)
        return found.num_found


def _pooled(feature: FeatureSpec, rows: Tensor, splits: NDArray[np.int64]) -> Tensor:
    """Returns the pooled rows of one feature, on their device; zeros for an example without ids."""
    lengths = np.diff(splits)
    num_rows = len(lengths)
    if feature.pooling == "firstn":
        places = num_places(feature)
        first = np.arange(num_rows) * places - splits[:-1]
        targets = np.arange(len(rows)) + np.repeat(first, lengths)
        return rows.new_zeros(num_rows * places, feature.dim).index_copy_(0, _on(rows, targets), rows)
    if (lengths == 1).all():
        return rows
    if len(rows) == 0:
        return rows.new_zeros(num_rows, feature.dim)
    sums = embedding_bag(torch.arange(len(rows), device=rows.device), rows, _on(rows, splits[:-1]), mode="sum")
    if feature.pooling == "sum":
        return sums
    counts = np.maximum(lengths, 1).astype(np.float32)
    scales = 1 / (counts if feature.pooling == "mean" else np.sqrt(counts))
    return sums * _on(rows, scales)[:, None]


def _on(rows: Tensor, array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(rows.device)
