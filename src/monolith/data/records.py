"""Serialized samples in one buffer: what a reader hands to a parser without a copy of each."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Self, overload

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """A sequence of byte strings that lie in one buffer."""

    buffer: npt.NDArray[np.uint8]
    """The bytes, headers of the framing included."""
    spans: npt.NDArray[np.int64]
    """Offset and length of each record in the buffer, in turns."""
    origin: str = "records"
    """Where they come from, for messages."""
    base: int = 0
    """Offset of the buffer in the uncompressed stream that it was read from."""

    @classmethod
    def from_list(cls, records: Iterable[bytes]) -> Self:
        """Records from byte strings, copied into one buffer."""
        records = list(records)
        ends = np.cumsum([0, *(len(record) for record in records)], dtype=np.int64)
        spans = np.stack([ends[:-1], np.diff(ends)], axis=1).reshape(-1)
        return cls(np.frombuffer(b"".join(records), dtype=np.uint8), spans)

    def __len__(self) -> int:
        return len(self.spans) // 2

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> bytes | Self:
        pairs = self.spans.reshape(-1, 2)
        if isinstance(index, slice):
            chosen = np.ascontiguousarray(pairs[index]).reshape(-1)
            return type(self)(self.buffer, chosen, self.origin, self.base)
        offset, length = pairs[operator.index(index)].tolist()
        return self.buffer[offset : offset + length].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        view = self.buffer.data
        numbers = self.spans.tolist()
        for offset, length in zip(numbers[::2], numbers[1::2], strict=True):
            yield bytes(view[offset : offset + length])

    def split(self, size: int) -> Iterator[Self]:
        """Pieces of `size` records, the last one as long as it comes."""
        if size < 1:
            raise ValueError(f"size of a piece must be >= 1, got {size}")
        for begin, end in pairwise([*range(0, len(self), size), len(self)]):
            yield self[begin:end]

    def place_of(self, index: int) -> str:
        """The place of a record for messages."""
        return f"{self.origin}: record at offset {self.base + int(self.spans[2 * index])}"

    def source_keys(self) -> npt.NDArray[np.uint32]:
        """The data source of each record, out of the lagrangex header in front of it.

        Only for records that were read with `Framing.LAGRANGEX`: no other framing says where a record comes from.
        """
        offsets = self.spans[::2]
        if len(offsets) and int(offsets[0]) < 16:
            raise ValueError(f"{self.origin}: no room for a lagrangex header in front of the first record")
        places = (offsets - 16)[:, None] + np.arange(4)
        words = np.ascontiguousarray(self.buffer[places]).view("<u4").reshape(-1)
        return words & np.uint32(0xFFFFFF00)
