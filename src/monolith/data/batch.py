"""The columns of some samples, ready for a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import torch
from torch import Tensor
from torch.utils.data._utils.collate import default_collate_fn_map

from monolith.tensors import Ragged

if TYPE_CHECKING:
    from monolith.data.text_ids import TextColumn

ColumnValues: TypeAlias = "Tensor | Ragged | list[bytes]"
"""Values of a column: one row for each sample."""


class Batch(Mapping[str, ColumnValues]):
    """Column name to values, all of `num_rows` rows; default: that of the columns.

    >>> import torch
    >>> batch = Batch({"user": Ragged.from_lists([[7], [3, 9]]), "label": torch.ones(2, 1)}, num_rows=2)
    >>> batch["user"], batch.num_rows
    (Ragged([[7], [3, 9]], dtype=torch.int64), 2)
    """

    __slots__ = ("_columns", "_num_rows", "_texts")

    def __init__(
        self,
        columns: Mapping[str, ColumnValues],
        *,
        num_rows: int | None = None,
        texts: Mapping[str, TextColumn] | None = None,
    ) -> None:
        if num_rows is None:
            num_rows = next((_rows_of(values) for values in columns.values()), 0)
        for name, values in columns.items():
            rows = _rows_of(values)
            if rows != num_rows:
                raise ValueError(f"column {name!r} must have {num_rows} rows, got {rows}")
        self._columns = dict(columns)
        self._num_rows = num_rows
        self._texts = {} if not texts else {name: column for name, column in texts.items() if name in columns}

    @property
    def num_rows(self) -> int:
        """Number of samples."""
        return self._num_rows

    @property
    def texts(self) -> Mapping[str, TextColumn]:
        """Columns of ids that were texts, and how they became ids; an export keeps it, so that requests have texts."""
        return self._texts

    def __getitem__(self, name: str) -> ColumnValues:
        try:
            return self._columns[name]
        except KeyError:
            raise KeyError(f"batch has no column {name!r}; it has {', '.join(self._columns) or 'none'}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return f"Batch({self._num_rows} rows: {', '.join(self._columns)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Travels to another process in one piece."""
        return _from_packed, (*pack_columns(self._columns), self._num_rows, self._texts)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """Returns the batch on a device; byte strings stay on the host."""
        columns = {
            name: values if isinstance(values, list) else values.to(device, non_blocking=non_blocking)
            for name, values in self._columns.items()
        }
        return Batch(columns, num_rows=self._num_rows, texts=self._texts)

    def pin_memory(self) -> Batch:
        """Returns the batch in pinned memory, from which copies to a GPU are asynchronous."""
        columns = {
            name: values if isinstance(values, list) else values.pin_memory() for name, values in self._columns.items()
        }
        return Batch(columns, num_rows=self._num_rows, texts=self._texts)


def _from_packed(packed: Any, form: Any, num_rows: int, texts: Mapping[str, TextColumn]) -> Batch:
    return Batch(unpack_columns(packed, form), num_rows=num_rows, texts=texts)


def _rows_of(values: ColumnValues) -> int:
    return values.num_rows if isinstance(values, Ragged) else len(values)


def _refuse_to_collate(batches: Sequence[Batch], **_: object) -> NoReturn:
    raise ValueError(
        f"DataLoader: expected batch_size=None, got {len(batches)}: a Dataset already returns batches; use"
        " DataLoader(dataset, batch_size=None), and set the batch size with dataset.batch(...)"
    )


default_collate_fn_map[Batch] = _refuse_to_collate


# Torch passes tensors of worker processes one by one, each with a descriptor and some messages of its own, which for a
# batch of many small columns takes longer than making them. In one piece it is one descriptor, or none if it is small.

_ALIGNMENT = 64
_MOST_IN_A_MESSAGE = 1 << 18
"""Bytes; more are worth a descriptor."""


def pack_columns(columns: Mapping[str, ColumnValues]) -> tuple[Any, Any]:
    """Returns the bytes of all tensors, and their layout; tensors of other devices are unchanged."""
    tensors = [tensor for values in columns.values() for tensor in _tensors(values)]
    if not all(tensor.device.type == "cpu" and not tensor.requires_grad for tensor in tensors):
        return None, dict(columns)
    sizes = [-(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT for tensor in tensors]
    packed = torch.empty(sum(sizes), dtype=torch.uint8)
    places: Iterator[tuple[int, Tensor]] = iter(zip(accumulate(sizes, initial=0), tensors, strict=False))
    form = {name: _packed(values, packed, places) for name, values in columns.items()}
    return (packed.numpy().tobytes() if len(packed) <= _MOST_IN_A_MESSAGE else packed), form


def unpack_columns(packed: Any, form: Any) -> dict[str, ColumnValues]:
    """Returns the columns that were passed to `pack_columns`; tensors are views of shared memory."""
    if packed is None:
        return dict(form)
    if isinstance(packed, bytes):
        packed = torch.frombuffer(bytearray(packed), dtype=torch.uint8) if packed else torch.empty(0, dtype=torch.uint8)
    return {name: _unpacked(values, packed) for name, values in form.items()}


def _tensors(values: ColumnValues) -> Iterator[Tensor]:
    if isinstance(values, Ragged):
        yield values.row_splits
        yield from _tensors(values.values)
    elif isinstance(values, Tensor):
        yield values


def _packed(values: ColumnValues, packed: Tensor, places: Iterator[tuple[int, Tensor]]) -> Any:
    if isinstance(values, Ragged):
        return "ragged", _packed(values.row_splits, packed, places), _packed(values.values, packed, places)
    if not isinstance(values, Tensor):
        return "as it is", values
    start, tensor = next(places)
    size = tensor.numel() * tensor.element_size()
    packed[start : start + size] = tensor.contiguous().reshape(-1).view(torch.uint8)
    return "tensor", start, tensor.dtype, tuple(tensor.shape)


def _unpacked(form: Any, packed: Tensor) -> Any:
    kind, *rest = form
    if kind == "ragged":
        splits, values = (_unpacked(part, packed) for part in rest)
        return Ragged(values, splits, validate=False)
    if kind == "as it is":
        return rest[0]
    start, dtype, shape = rest
    size = torch.Size(shape).numel() * dtype.itemsize
    return packed[start : start + size].view(dtype).reshape(shape)
