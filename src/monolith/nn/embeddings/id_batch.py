"""Converts the ids of a batch to the flat keys of one plan.

A batch maps slot names to ids: a `Ragged`, or an int64 tensor [B] (one id per example) or [B, k] (k ids per example).
The ids of all slots are laid end to end, table by table, and become the keys of their rows, which contain the slot;
ids that stand for padding are removed::

    slots  user [B], item [B], tags Ragged       ids   | user | item | tags        |
    tables 9-adagrad: tags; 16-adagrad: user, item     | tags        | user | item |   table_splits [0, n_tags, n]
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
import torch
from torch import Tensor

from monolith import _core
from monolith.errors import InvalidArgumentError
from monolith.ids import SIGNATURE_BITS_V2
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from monolith.nn.embeddings.merge import PlacedSlot

SlotInput: TypeAlias = "Ragged | Tensor | NDArray[np.int64]"
"""The ids of one slot."""

BY_ROW_SPLITS = -1
"""Stands for the ids of an example where their number differs from example to example."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """How many ids each example has in each slot. Slots are in the order of the flat ids."""

    num_examples: int
    sizes: NDArray[np.int64]
    """[F] ids of each slot."""
    ids_per_example: NDArray[np.int64]
    """[F] the same for every example, or `BY_ROW_SPLITS`."""
    row_splits: NDArray[np.int64]
    """[R, B + 1] of the slots that have them, in their order."""

    def lengths(self, slot: int) -> NDArray[np.int64]:
        """Returns [B]: ids of each example in one slot."""
        lengths: NDArray[np.int64] = np.diff(self.splits_of(slot))
        return lengths

    def splits_of(self, slot: int) -> NDArray[np.int64]:
        """Returns [B + 1]: where the ids of each example begin among those of one slot."""
        per_example = int(self.ids_per_example[slot])
        if per_example != BY_ROW_SPLITS:
            return np.arange(self.num_examples + 1) * per_example
        ragged = int(np.count_nonzero(self.ids_per_example[:slot] == BY_ROW_SPLITS))
        splits: NDArray[np.int64] = self.row_splits[ragged]
        return splits

    def example_of(self, slot: int, position: int) -> int:
        """Returns the example that contains one of the ids of a slot."""
        return int(np.searchsorted(self.splits_of(slot), position, side="right")) - 1

    def spread(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Spreads one value per example [B] to one per id [n], in flat order."""
        return np.concatenate([np.repeat(values, self.lengths(slot)) for slot in range(len(self.sizes))])


@dataclass(frozen=True, slots=True, kw_only=True)
class IdBatch:
    """The ids of a batch as a plan takes them."""

    ids: NDArray[np.int64]
    """Keys, for `monolith.tables.slot_keys`."""
    buckets: NDArray[np.uint16]
    """Bucket of each key."""
    table_splits: Tensor
    """Splits by table, as `Store.plan` takes them."""
    shape: BatchShape

    @property
    def key_tensor(self) -> Tensor:
        """The keys as `Store.plan` takes them."""
        return torch.from_numpy(self.ids)

    @property
    def bucket_tensor(self) -> Tensor:
        """The buckets as `Store.plan` takes them."""
        return torch.from_numpy(self.buckets.view(np.int16))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """The common parts of batches with the same numbers of ids."""

    shape: BatchShape
    table_splits: Tensor


class IdBatchReader:
    """Reads batches for one set of slots; any thread may call it."""

    def __init__(self, slots: Sequence[PlacedSlot], tables: Sequence[str]) -> None:
        """Takes the slots in flat order: by table, then as in the model."""
        self._slots = tuple(slots)
        self._names = [slot.name for slot in slots]
        names = [slot.table for slot in slots]
        self._first_slots = [names.index(table) for table in tables]
        self._numbers = np.array([(slot.number or 0) << SIGNATURE_BITS_V2 for slot in slots], np.int64)
        """[F] slot numbers, in their bits."""
        self._carried = np.where([slot.slot.id_layout == "v2" for slot in slots], self._numbers, 0)
        """[F] value that ids must have in these bits."""
        self._forbidden = np.where([slot.number is None for slot in slots], 0, np.int64(-1 << SIGNATURE_BITS_V2))
        """[F] other bits that ids must not have."""
        self._wide = np.array([_wide_bits(slot) for slot in slots], np.uint64).view(np.int64)
        """[F] upper bits of keys of wide ids; 0 where ids may not be wide."""
        self._padding = [slot.slot.padding_id for slot in slots]
        self._has_padding = any(padding_id is not None for padding_id in self._padding)
        self._last_frame: tuple[tuple[int, ...], _Frame] | None = None
        self._last_facts: tuple[list[object] | None, _Frame | None] = None, None

    def read(self, batch: Mapping[str, SlotInput]) -> IdBatch:
        """Checks everything, then lays the ids end to end.

        Raises:
            InvalidArgumentError: the ids of a slot are malformed; names the slot and the reason.
            TypeError: ids of another type or dtype.
        """
        if not isinstance(batch, Mapping):
            raise TypeError(f"batch must map slot names to ids, got {type(batch).__name__}")
        columns: list[Any] = list(map(batch.get, self._names))
        known = self._known_frame(columns)
        if known is not None:
            return self._packed(list(map(Tensor.contiguous, columns)), known)
        flat, per_example, splits, num_examples = [], [], [], -1
        for slot, ids in zip(self._slots, columns, strict=True):
            if isinstance(ids, Ragged):
                values, count = _ragged_ids(ids, slot.name)
                splits.append(ids.row_splits.numpy())
                per_example.append(BY_ROW_SPLITS)
            else:
                values, count, ids_per_example = _dense_ids(ids, slot.name, batch)
                per_example.append(ids_per_example)
            if count != num_examples:
                if num_examples >= 0:
                    self._refuse_length(slot.name, count, num_examples)
                num_examples = count
            flat.append(values)
        frame = self._frame(num_examples, per_example, splits, flat)
        if self._has_padding:
            flat, per_example, splits = self._without_padding(flat, frame.shape)
            frame = self._frame(num_examples, per_example, splits, flat)
        elif not splits:
            self._last_facts = _facts_of(columns), frame
        return self._packed(flat, frame)

    def _known_frame(self, columns: Sequence[object]) -> _Frame | None:
        """Returns the frame of the last batch of tensors, which was checked, if this batch has the same facts."""
        facts, frame = self._last_facts
        return frame if facts is not None and facts == _facts_of(columns) else None

    def _packed(self, flat: Sequence[Tensor], frame: _Frame) -> IdBatch:
        addresses = [values.data_ptr() for values in flat]
        ids, buckets, bad_slot = _core.pack_slot_ids(
            addresses, frame.shape.sizes, self._carried, self._numbers, self._forbidden, self._wide
        )
        if bad_slot >= 0:
            self._refuse_ids(bad_slot, flat[bad_slot].numpy().reshape(-1), frame.shape)
        return IdBatch(ids=ids, buckets=buckets, table_splits=frame.table_splits, shape=frame.shape)

    def _without_padding(
        self, flat: Sequence[Tensor], shape: BatchShape
    ) -> tuple[list[Tensor], list[int], list[NDArray[np.int64]]]:
        """Returns ids, ids per example and row splits without padding."""
        kept: list[Tensor] = []
        per_example: list[int] = []
        splits: list[NDArray[np.int64]] = []
        for place, (values, padding) in enumerate(zip(flat, self._padding, strict=True)):
            is_id = None if padding is None else values.numpy() != padding
            if is_id is None or is_id.all():
                kept.append(values)
                per_example.append(int(shape.ids_per_example[place]))
                if per_example[-1] == BY_ROW_SPLITS:
                    splits.append(shape.splits_of(place))
            else:
                kept.append(torch.from_numpy(values.numpy()[is_id]))
                per_example.append(BY_ROW_SPLITS)
                splits.append(np.concatenate([[0], np.cumsum(is_id)])[shape.splits_of(place)])
        return kept, per_example, splits

    def _frame(
        self,
        num_examples: int,
        per_example: Sequence[int],
        splits: Sequence[NDArray[np.int64]],
        flat: Sequence[Tensor],
    ) -> _Frame:
        """Returns the frame of a batch; one without row splits reuses that of the last batch of the same shape."""
        key = (num_examples, *per_example)
        if not splits and self._last_frame is not None and self._last_frame[0] == key:
            return self._last_frame[1]
        sizes = np.array([values.shape[0] for values in flat], np.int64)
        shape = BatchShape(
            num_examples=num_examples,
            sizes=sizes,
            ids_per_example=np.array(per_example, np.int64),
            row_splits=np.array(splits, np.int64).reshape(len(splits), num_examples + 1),
        )
        self._check_splits(shape)
        ends = np.concatenate([[0], np.cumsum(sizes)])
        table_splits = torch.from_numpy(ends[[*self._first_slots, len(self._slots)]])
        frame = _Frame(shape=shape, table_splits=table_splits)
        if not splits:
            self._last_frame = key, frame
        return frame

    def _refuse_length(self, name: str, count: int, expected: int) -> NoReturn:
        first = self._slots[0].name
        raise InvalidArgumentError(
            f"slot {name!r}: the batch has {expected} examples by slot {first!r}, but {count} here;"
            " every slot needs ids (or an empty row) for every example"
        )

    def _check_splits(self, shape: BatchShape) -> None:
        splits = shape.row_splits
        ragged = np.flatnonzero(shape.ids_per_example == BY_ROW_SPLITS)
        if splits.size == 0:
            return
        is_good = (splits[:, 0] == 0) & (splits[:, -1] == shape.sizes[ragged])
        if is_good.all() and (splits[:, 1:] >= splits[:, :-1]).all():
            return
        is_good &= (splits[:, 1:] >= splits[:, :-1]).all(axis=1)
        bad = int(np.flatnonzero(~is_good)[0])
        row, slot = splits[bad], ragged[bad]
        falling = ", decreasing in between" if (row[1:] < row[:-1]).any() else ""
        raise InvalidArgumentError(
            f"slot {self._slots[slot].name!r}: row_splits must rise from 0 to the number of ids ({shape.sizes[slot]}),"
            f" got {row[0]} to {row[-1]}{falling}"
        )

    def _refuse_ids(self, place: int, ids: NDArray[np.int64], shape: BatchShape) -> NoReturn:
        slot = self._slots[place]
        position = int(np.flatnonzero((ids ^ self._carried[place]) & self._forbidden[place])[0])
        bad, example = int(ids[position]), shape.example_of(place, position)
        padding = f", and Slot(padding_id={bad}) leaves it out if it stands for no id" if bad < 0 else ""
        if slot.slot.id_layout == "v2":
            raise InvalidArgumentError(
                f"slot {slot.name!r}: ids of id_layout='v2' must carry the slot's number {slot.number} in bits 48..62,"
                f" got {bad} in example {example}; write monolith.ids.pack_v2({slot.number}, signature){padding}"
            )
        raise InvalidArgumentError(
            f"slot {slot.name!r}: ids of id_layout='raw' must be in [0, 2^48), got {bad} in example {example};"
            f" Slot(id_layout='int64'), the default, takes any int64{padding}"
        )


_FACTS = operator.attrgetter("dtype", "is_cpu", "layout", "shape")


def _facts_of(columns: Sequence[object]) -> list[object] | None:
    """Returns all checked properties of tensors of ids; None where something else is among them."""
    try:
        return list(map(_FACTS, columns))
    except AttributeError:
        return None


def _wide_bits(slot: PlacedSlot) -> int:
    return 0 if slot.wide_index is None else 1 << 63 | slot.wide_index << 54


def _ragged_ids(ids: Ragged, name: str) -> tuple[Tensor, int]:
    values, splits = ids.values, ids.row_splits
    if isinstance(values, Ragged) or values.ndim != 1:
        raise InvalidArgumentError(f"slot {name!r}: ids must be a Ragged of plain numbers, got {ids!r}")
    if splits.dtype != torch.int64 or splits.ndim != 1 or splits.shape[0] == 0 or not splits.is_cpu:
        raise InvalidArgumentError(
            f"slot {name!r}: row_splits must be int64 [examples + 1] on the CPU, got {splits.dtype}"
            f" {list(splits.shape)} on {splits.device}"
        )
    _require_ids(values, name)
    return values.contiguous(), ids.num_rows


def _dense_ids(ids: object, name: str, batch: Mapping[str, SlotInput]) -> tuple[Tensor, int, int]:
    """Returns flat ids, number of examples, ids of each example."""
    if not isinstance(ids, Tensor):
        ids = _as_tensor(ids, name, batch)
    _require_ids(ids, name)
    if ids.ndim == 1:
        return ids.contiguous(), ids.shape[0], 1
    if ids.ndim == 2:
        return ids.reshape(-1), ids.shape[0], ids.shape[1]
    raise InvalidArgumentError(
        f"slot {name!r}: ids must be [examples], [examples, ids of each] or a Ragged, got shape {tuple(ids.shape)}"
    )


def _as_tensor(ids: object, name: str, batch: Mapping[str, SlotInput]) -> Tensor:
    if ids is None and name not in batch:
        close = difflib.get_close_matches(name, map(str, batch), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(map(repr, batch)) or 'nothing'}"
        raise InvalidArgumentError(f"slot {name!r}: the batch has no ids for it; {hint}")
    if isinstance(ids, np.ndarray):
        if ids.dtype != np.int64:
            raise TypeError(f"slot {name!r}: ids must be int64, got {ids.dtype}; write ids.astype(np.int64)")
        return torch.from_numpy(np.ascontiguousarray(ids))
    hint = ""
    if isinstance(ids, list | tuple):
        are_texts = any(isinstance(value, str | bytes) for value in ids)
        texts = f"texts become ids by monolith.data.text_ids({name!r}, texts)"
        hint = f"; {texts if are_texts else 'write Ragged.from_lists(ids)'}"
    raise TypeError(f"slot {name!r}: ids must be a Ragged or an int64 tensor, got {type(ids).__name__}{hint}")


def _require_ids(ids: Tensor, name: str) -> None:
    if ids.dtype is not torch.int64:
        raise TypeError(f"slot {name!r}: ids must be int64, got {ids.dtype}; write ids.to(torch.int64)")
    if not ids.is_cpu:
        raise InvalidArgumentError(f"slot {name!r}: ids must be on the CPU, got {ids.device}; write ids.cpu()")
    if ids.layout is not torch.strided:
        raise TypeError(f"slot {name!r}: ids must be a dense tensor, got {ids.layout}; write ids.to_dense()")
