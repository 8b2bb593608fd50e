"""Candidate items of two-stage models, out of files of instances or of Parquet."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import torch

from monolith.config import Config, config
from monolith.data import Batch, Ids, LineIdField, ParquetDataset, Parser, RecordDataset, city_hash64_of_text
from monolith.data.records import Framing
from monolith.errors import InvalidArgumentError
from monolith.ids import slot_v1, v1_to_v2
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor

ITEM_ID = "item_id"
"""Column of the ids of candidate items."""
_FIDS = "fids"
_SLOT = re.compile(r"fc_slot_(\d+)")
_ROWS = 1 << 12


@config
class CandidateItems(Config):
    """Location of candidate items: a file of instances, identified by ``line_id.item_id``, or Parquet.

    Parquet has the columns ``item_id``, integers or strings, and ``fids``, the v1 ids of an item.
    """

    path: str
    """Files: paths, globs or URLs."""
    parquet: bool = False
    """Whether the files are Parquet."""
    lagrangex_header: bool = False
    """Framing of files of instances."""
    has_sort_id: bool = False
    """Framing of files of instances, see `monolith.data.Framing`."""
    kafka_dump: bool = False
    """Framing of files of instances, see `monolith.data.Framing`."""
    kafka_dump_prefix: bool = False
    """Framing of files of instances, see `monolith.data.Framing`."""

    def __post_init__(self) -> None:
        if not self.path:
            raise ValueError("CandidateItems: path must not be empty; set it to the file or folder of the items")
        framed = [name for name in _FRAMING if getattr(self, name)]
        if self.parquet and framed:
            raise ValueError(f"CandidateItems: Parquet has no framing, got {framed[0]}=True; remove it")

    def batches(self, columns: Sequence[str]) -> Iterator[Batch]:
        """Yields items with their ids and the requested columns ``fc_slot_<slot>``: v2 ids, empty if absent.

        Raises:
            InvalidArgumentError: a column is not a slot, or is missing in a file.
            DataLossError: a file is damaged.
        """
        slots = {name: _slot_of(name) for name in columns}
        if self.parquet:
            kinds = {ITEM_ID: self._kind_of_ids(), _FIDS: "int"}
            for batch in ParquetDataset(self.path, kinds, block_rows=_ROWS):
                yield _of_parquet(batch, slots)
            return
        framing = Framing.of_options(**{name: getattr(self, name) for name in _FRAMING})
        parser = Parser("instance", [LineIdField(ITEM_ID), *map(Ids, columns)])
        yield from RecordDataset(self.path, framing, sample="instance").batch(_ROWS).parse(parser)

    def _kind_of_ids(self) -> str:
        """Numbers are taken as they are, and anything else as texts."""
        try:
            next(iter(ParquetDataset(self.path, {ITEM_ID: "int"}, block_rows=1)), None)
        except InvalidArgumentError:
            return "bytes"
        return "any"


_FRAMING = ("lagrangex_header", "has_sort_id", "kafka_dump", "kafka_dump_prefix")


def item_ids(ids: Iterable[int | str | bytes]) -> Tensor:
    """Returns the ids of items of Parquet in requests: CityHash64 of each as a string, without the sign bit; int64.

    >>> item_ids([7, "7"]).tolist()
    [590358713228080280, 590358713228080280]
    """
    texts = (item_id if isinstance(item_id, str | bytes) else str(int(item_id)) for item_id in ids)
    return torch.tensor([city_hash64_of_text(text) & (2**63 - 1) for text in texts], dtype=torch.int64)


def _slot_of(name: str) -> int:
    match = _SLOT.fullmatch(name)
    if match is None:
        raise InvalidArgumentError(f"candidate items: columns are fc_slot_<slot>, got {name!r}")
    return int(match[1])


def _of_parquet(batch: Batch, slots: dict[str, int]) -> Batch:
    ids, fids = batch[ITEM_ID], batch[_FIDS]
    if isinstance(ids, Ragged):
        raise InvalidArgumentError(f"candidate items: column {ITEM_ID!r} must hold one number or text a row, got lists")
    if not isinstance(fids, Ragged):
        raise InvalidArgumentError(f"candidate items: column {_FIDS!r} must hold lists of ids")
    values = fids.flat_values.numpy()
    rows = np.repeat(np.arange(fids.num_rows), fids.lengths().numpy())
    of_slot = slot_v1(values)
    columns: dict[str, Tensor | Ragged] = {ITEM_ID: item_ids(ids if isinstance(ids, list) else ids.tolist())}
    for name, slot in slots.items():
        chosen = of_slot == slot
        lengths = np.bincount(rows[chosen], minlength=fids.num_rows)
        columns[name] = Ragged.from_lengths(torch.from_numpy(v1_to_v2(values[chosen])), torch.from_numpy(lengths))
    return Batch(columns, num_rows=batch.num_rows)
