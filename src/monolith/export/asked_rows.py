"""Records the lookups of a model during one call: the column of each slot, and the outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from monolith.data.batch import Batch
from monolith.errors import InvalidArgumentError
from monolith.export.layout_spec import POOLINGS, FeatureSpec
from monolith.nn import EmbeddingOutputs
from monolith.nn.embeddings.batch_context import BatchContext

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from monolith.data.batch import ColumnValues
    from monolith.nn import Embeddings

__all__ = ["LookupRecorder", "WatchedBatch"]


class WatchedBatch(Batch):
    """A batch that records which of its columns were read. The number of rows is not checked: it may be symbolic."""

    __slots__ = ("read",)

    def __init__(self, columns: Mapping[str, ColumnValues], *, num_rows: int) -> None:
        super().__init__({}, num_rows=num_rows)
        self._columns = dict(columns)
        self.read: dict[str, ColumnValues] = {}

    def __getitem__(self, name: str) -> ColumnValues:
        found = super().__getitem__(name)
        self.read[name] = found
        return found

    def unwatched(self, name: str) -> ColumnValues | None:
        """Returns a column without recording the read."""
        return super().__getitem__(name) if name in self._columns else None


class LookupRecorder:
    """The lookups of one call of a model. Not thread-safe.

    Args:
        embeddings: Embeddings of the model, by module name.
        stores: Name -> store of the model; two modules may share one.
    """

    def __init__(self, embeddings: Mapping[str, Embeddings], stores: Mapping[str, object]) -> None:
        self._names = {id(module): name for name, module in embeddings.items()}
        self._stores = {id(store): name for name, store in stores.items()}
        self._found: dict[tuple[int, str, str], str] = {}
        self.features: dict[str, FeatureSpec] = {}
        """Output name -> feature that was looked up."""
        self.outputs: dict[str, Tensor] = {}
        """Output name -> result of the lookup."""

    def recording(self, batch: WatchedBatch) -> BatchContext:
        """Returns a `BatchContext` in which lookups are made and recorded."""
        return BatchContext(batch, lookup_override=lambda module, asked: self._record(module, asked, batch))

    def replaying(self, batch: WatchedBatch, outputs: Mapping[str, Tensor]) -> BatchContext:
        """Returns a `BatchContext` in which lookups return these outputs instead."""
        return BatchContext(batch, lookup_override=lambda module, asked: self._answer(module, asked, batch, outputs))

    def _record(self, module: Embeddings, asked: Mapping[str, Any], batch: WatchedBatch) -> EmbeddingOutputs:
        columns = _columns_of(module, asked, batch)
        with BatchContext({}):
            given = {slot: _given(asked, slot) for slot in module.slots}
            looked_up: EmbeddingOutputs = module({slot: ids for slot, ids in given.items() if ids is not None})
        for slot, column in columns.items():
            key = id(module), slot, column
            if key not in self._found:
                self._found[key] = name = self._new_name(module, slot, column)
                self.features[name] = self._feature(module, slot, column, name)
            self.outputs[self._found[key]] = looked_up[slot]
        return looked_up

    def _answer(
        self, module: Embeddings, asked: Mapping[str, Any], batch: WatchedBatch, outputs: Mapping[str, Tensor]
    ) -> EmbeddingOutputs:
        found = {
            slot: outputs[self._found[id(module), slot, column]]
            for slot, column in _columns_of(module, asked, batch).items()
        }
        return EmbeddingOutputs(found, torch.cat([each.flatten(1) for each in found.values()], dim=1))

    def _new_name(self, module: Embeddings, slot: str, column: str) -> str:
        wanted = slot if slot == column else f"{slot}.{column}"
        return wanted if wanted not in self.features else f"{self._names[id(module)]}.{wanted}"

    def _feature(self, module: Embeddings, slot: str, column: str, name: str) -> FeatureSpec:
        placed = module.placed[slot]
        return FeatureSpec(
            name=name,
            store=self._stores[id(module.store)],
            table=placed.table,
            dims=tuple(placed.slot.slice_dims),
            pooling=POOLINGS[placed.combiner.number],
            max_sequence_length=placed.combiner.max_seq_length,
            id_layout=placed.slot.id_layout,
            number=placed.number,
            wide_index=placed.wide_index,
            padding_id=placed.slot.padding_id,
            column=None if column == name else column,
        )


def _given(asked: Mapping[str, Any], slot: str) -> Any:
    return asked.unwatched(slot) if isinstance(asked, WatchedBatch) else asked.get(slot)


def _columns_of(module: Embeddings, asked: Mapping[str, Any], batch: WatchedBatch) -> dict[str, str]:
    """Returns slot -> column of the batch that is looked up.

    Raises:
        InvalidArgumentError: the ids of a slot are not a column of the batch.
    """
    found = {}
    for slot in module.slots:
        ids = _given(asked, slot)
        if asked is batch or (ids is not None and ids is batch.unwatched(slot)):
            found[slot] = slot
            continue
        same = [name for name in batch if ids is not None and batch.unwatched(name) is ids]
        if not same:
            raise InvalidArgumentError(
                f"slot {slot!r}: the model looks up ids that are no column of the batch; an export takes ids from"
                " requests alone: make a column of them"
            )
        found[slot] = same[0]
    return found
