"""The rows of a module by the names of its slots: their location, export and import."""

from __future__ import annotations

import time as clock
from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from monolith.errors import InvalidArgumentError
from monolith.nn.embeddings.id_batch import IdBatchReader
from monolith.nn.embeddings.rows_module import RowsModule
from monolith.nn.row_assignment import RowAssignment
from monolith.nn.slot_vectors import SlotVectors, export_vectors, read_vectors

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from torch import Tensor

    from monolith.nn.embeddings.merge import PlacedSlot
    from monolith.nn.row_assignment import RowIds, RowVectors
    from monolith.nn.slot import Slot
    from monolith.tables import TableConfig


_FLUSH_SECONDS = 600.0


class RowsBySlot(RowsModule):
    """A module whose rows are those of slots."""

    _configs: Mapping[str, TableConfig]
    """Table -> its config."""

    @property
    def slots(self) -> Mapping[str, Slot]:
        """Name -> slot, with everything filled in that a slot shares with another."""
        return MappingProxyType({name: placed.slot for name, placed in self._placed.items()})

    @property
    def placed(self) -> Mapping[str, PlacedSlot]:
        """Name -> location of the slot's rows and output, for tools that read or write rows themselves."""
        return MappingProxyType(self._placed)

    @property
    def table_configs(self) -> Mapping[str, TableConfig]:
        """Table -> its config, for tools that make a table alike."""
        return MappingProxyType(dict(self._configs))

    @property
    def tables(self) -> Mapping[str, tuple[str, ...]]:
        """Table -> the slots whose rows it holds."""
        names = [placed.table for placed in self._placed.values()]
        return {
            table: tuple(n for n, placed in self._placed.items() if placed.table == table)
            for table in sorted(set(names))
        }

    def vectors(self, slot: str) -> SlotVectors:
        """Returns all ids of a slot that have a row, and the rows: int64 [n] by ascending id, float32 [n, dim].

        They are a copy of a consistent cut, with every step made so far. For tables near the size of the memory use
        `export_vectors`.

        >>> import torch
        >>> import monolith as ml
        >>> emb = ml.Embeddings({"item": ml.Slot(dim=2)})
        >>> emb({"item": torch.tensor([9, 5])}).concat().sum().backward()
        >>> _ = emb.step()
        >>> ids, vectors = emb.vectors("item")
        >>> ids, vectors.shape
        (tensor([5, 9]), torch.Size([2, 2]))
        """
        with self.cut() as cut:
            return read_vectors(cut, self.store.schema, self._placed_slot(slot))

    def export_vectors(self, slot: str, path: str | os.PathLike[str]) -> int:
        """Writes what `vectors` returns to a file: ``.parquet`` (id, vector) or ``.npz`` (ids, vectors).

        Slot, dims and step are in its metadata. Only the ids are held in memory; the file appears complete or not at
        all.

        Returns:
            Number of rows.
        """
        placed = self._placed_slot(slot)
        with self.cut() as cut:
            return export_vectors(cut, self.store.schema, placed, path, step=self.global_step)

    def assign(self, slot: str, ids: RowIds, vectors: RowVectors, *, time: int | None = None) -> int:
        """Makes `vectors` the rows of `ids`, for weights that were trained elsewhere.

        Their optimizer state is that of new rows. Ids without a row get one, regardless of `min_count`; the other rows
        of the slot stay.

        Args:
            slot: Whose rows.
            ids: int64 [n], each once.
            vectors: Floats [n, dim], finite; rows keep float32.
            time: When they were last trained, Unix seconds, from which expiry counts; None: now.

        Returns:
            Number of rows.

        Raises:
            InvalidArgumentError, TypeError: an id or vector cannot be assigned; names it. No row changed.

        >>> import torch
        >>> import monolith as ml
        >>> emb = ml.Embeddings({"item": ml.Slot(dim=2)})
        >>> emb.assign("item", torch.tensor([5, 9]), torch.tensor([[0.5, 1.0], [0.0, -1.0]]))
        2
        >>> emb.lookup("item", torch.tensor([9]))
        tensor([[ 0., -1.]])
        """
        placed = self._placed_slot(slot)
        moment = int(clock.time()) if time is None else time
        return RowAssignment(self.store, placed, self._configs[placed.table], time=moment).assign(ids, vectors)

    def erase(self, slot: str, ids: RowIds | Sequence[int]) -> int:
        """Removes the rows of some ids, with optimizer state and admission counts, as for erasure requests of users.

        A delta log gets tombstones, so that servers that follow it drop the rows, too. Updates of this module are
        flushed first. An update in flight of another worker, of a batch that was read before, starts the id as a
        new one: old weights do not return, but an id that is still in the training data gets a new row. Where rows are
        shared among ranks, all ranks make the same call. See ``docs/how-to/erase.md`` for checkpoints and logs.

        Args:
            slot: Whose rows.
            ids: int64, as the slot takes them.

        Returns:
            The number of rows removed.

        Raises:
            InvalidArgumentError, TypeError: no such slot, or ids that it does not take; no row was removed.

        >>> import torch
        >>> import monolith as ml
        >>> emb = ml.Embeddings({"user": ml.Slot(dim=2)})
        >>> emb({"user": torch.tensor([7, 8])}).concat().sum().backward()
        >>> _ = emb.step()
        >>> emb.erase("user", [7, 9]), emb.num_rows_by_slot()
        (1, {'user': 1})
        """
        placed = self._placed_slot(slot)
        read = IdBatchReader([placed], [placed.table]).read({slot: _flat_ids(ids, slot)})
        self._worker.flush(timeout_seconds=_FLUSH_SECONDS)
        return self.store.erase(placed.table, read.key_tensor, buckets=read.bucket_tensor)

    def num_rows_by_slot(self) -> dict[str, int]:
        """Returns slot -> number of its rows, with every step made so far; slots that share rows have the same number.

        Makes one pass over the rows, in the processes that have them. Where ranks share rows, all ranks call it.
        """
        self._worker.flush(timeout_seconds=_FLUSH_SECONDS)
        shared = {placed.table for placed in self._placed.values() if placed.number is not None}
        of_slots = {table: self.store.rows_by_slot(table) for table in sorted(shared)}
        of_tables = {} if len(shared) == len(self.tables) else self.store.stats().tables
        return {
            name: int(of_tables[placed.table]["rows"])
            if placed.number is None
            else of_slots[placed.table].get(placed.number, 0)
            for name, placed in self._placed.items()
        }

    def _placed_slot(self, name: str) -> PlacedSlot:
        if name not in self._placed:
            raise InvalidArgumentError(f"slot {name!r} does not exist; the slots are {list(self._placed)}")
        return self._placed[name]


def _flat_ids(ids: RowIds | Sequence[int], slot: str) -> Tensor:
    """Returns the ids as a tensor [n]; the reader of the slot rejects what is not int64.

    Raises:
        TypeError: texts.
    """
    values = ids if isinstance(ids, Sequence) else ()
    if any(isinstance(value, str | bytes) for value in (ids, *values)):
        raise TypeError(
            f"slot {slot!r}: ids must be int64, got texts; texts become ids by monolith.data.text_ids({slot!r}, texts)"
        )
    flat = torch.as_tensor(ids).reshape(-1)
    return flat if flat.numel() else flat.to(torch.int64)
