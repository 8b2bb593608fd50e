"""Serialized samples in one buffer: what a reader hands to a parser without a copy of each."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Self, overload

import numpy as np

from monolith.data.records.framing import LAGRANGEX_HEAD, SOURCE_KEY_MASK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Origins of records that were joined into one buffer."""

    origins: tuple[str, ...]
    """Origins of all records; the prefix of an offset in messages."""
    origin_of: npt.NDArray[np.int64]
    """Index of the origin of each record."""
    offsets: npt.NDArray[np.int64]
    """Offset of each record at its origin."""

    def __getitem__(self, rows: slice | npt.NDArray[np.int64]) -> Places:
        return Places(self.origins, self.origin_of[rows], self.offsets[rows])

    def text_of(self, index: int) -> str:
        """Returns the place of a record for messages."""
        return f"{self.origins[self.origin_of[index]]} {self.offsets[index]}"


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """A sequence of byte strings that lie in one buffer."""

    buffer: npt.NDArray[np.uint8]
    """The bytes, headers of the framing included."""
    spans: npt.NDArray[np.int64]
    """Offset and length of each record in the buffer, alternating."""
    origin: str = "records"
    """Origin of the records, for messages."""
    base: int = 0
    """Offset of the buffer in the uncompressed stream that it was read from."""
    places: Places | None = None
    """Origin of each record, if they were joined from several buffers; then `base` is meaningless."""
    has_source_keys: bool | None = False
    """Whether a lagrangex header precedes each record; None: only some, and it is unknown which."""

    @classmethod
    def from_list(cls, records: Iterable[bytes]) -> Self:
        """Records from byte strings, copied into one buffer."""
        records = list(records)
        ends = np.cumsum([0, *(len(record) for record in records)], dtype=np.int64)
        spans = np.stack([ends[:-1], np.diff(ends)], axis=1).reshape(-1)
        return cls(np.frombuffer(b"".join(records), dtype=np.uint8), spans)

    @classmethod
    def join(cls, blocks: Sequence[Records]) -> Self:
        """Copies the records of several blocks into one buffer; each keeps its origin."""
        pieces, spans, begin = [], [], 0
        for block in blocks:
            piece, piece_spans = block._compact()  # noqa: SLF001 - of this class
            pieces.append(piece)
            spans.append(piece_spans + np.array([begin, 0]))
            begin += len(piece)
        places = [block._own_places() for block in blocks]  # noqa: SLF001 - of this class
        origins = tuple(dict.fromkeys(origin for piece in places for origin in piece.origins))
        number_of = {origin: number for number, origin in enumerate(origins)}
        origin_of = [np.array([number_of[name] for name in piece.origins])[piece.origin_of] for piece in places]
        offsets = np.concatenate([piece.offsets for piece in places])
        joined = Places(origins, np.concatenate(origin_of), offsets)
        origin = blocks[0].origin if len({block.origin for block in blocks}) == 1 else "records"
        of_blocks = {block.has_source_keys for block in blocks}
        has_keys = of_blocks.pop() if len(of_blocks) == 1 else None
        return cls(np.concatenate(pieces), np.concatenate(spans).reshape(-1), origin, 0, joined, has_keys)

    def __len__(self) -> int:
        return len(self.spans) // 2

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> bytes | Self:
        pairs = self.spans.reshape(-1, 2)
        if isinstance(index, slice):
            return self._with(np.ascontiguousarray(pairs[index]), None if self.places is None else self.places[index])
        offset, length = pairs[operator.index(index)].tolist()
        return self.buffer[offset : offset + length].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        view = self.buffer.data
        numbers = self.spans.tolist()
        for offset, length in zip(numbers[::2], numbers[1::2], strict=True):
            yield bytes(view[offset : offset + length])

    def take(self, rows: npt.NDArray[np.int64]) -> Self:
        """Returns the records of these numbers, in their order; the bytes stay where they are."""
        return self._with(self.spans.reshape(-1, 2)[rows], None if self.places is None else self.places[rows])

    def split(self, size: int) -> Iterator[Self]:
        """Pieces of `size` records, the last one as long as it comes."""
        if size < 1:
            raise ValueError(f"size of a piece must be >= 1, got {size}")
        for begin, end in pairwise([*range(0, len(self), size), len(self)]):
            yield self[begin:end]

    def place_of(self, index: int) -> str:
        """Returns the place of a record for messages."""
        return self._own_places().text_of(index)

    def source_keys(self) -> npt.NDArray[np.uint32]:
        """Returns the data source of each record, from the lagrangex header before it.

        Raises:
            ValueError: the records, or some of them, have another framing, which has no data source.
        """
        if self.has_source_keys is None:
            raise ValueError(
                f"{self.origin}: records with and without lagrangex headers were joined, their sources can no longer "
                "be determined; parse them before joining"
            )
        if not self.has_source_keys:
            raise ValueError(f"{self.origin}: only records of the framing LAGRANGEX have a data source in their header")
        offsets = self.spans[::2]
        places = (offsets - LAGRANGEX_HEAD)[:, None] + np.arange(4)
        words = np.ascontiguousarray(self.buffer[places]).view("<u4").reshape(-1)
        return words & np.uint32(SOURCE_KEY_MASK)

    def _with(self, pairs: npt.NDArray[np.int64], places: Places | None) -> Self:
        spans = pairs.reshape(-1)
        return type(self)(self.buffer, spans, self.origin, self.base, places, self.has_source_keys)

    def _own_places(self) -> Places:
        if self.places is not None:
            return self.places
        origins = (f"{self.origin}: record at offset",)
        return Places(origins, np.zeros(len(self), dtype=np.int64), self.base + self.spans[::2])

    def _compact(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Returns the bytes of these records, headers included, and their spans as pairs."""
        offsets, lengths = self.spans[::2], self.spans[1::2]
        if not len(offsets):
            return self.buffer[:0], self.spans.reshape(-1, 2)
        leads = np.minimum(offsets, LAGRANGEX_HEAD)  # the header, which has the data source, travels with its record
        begin, end = int((offsets - leads).min()), int((offsets + lengths).max())
        sizes = leads + lengths
        if end - begin <= 2 * int(sizes.sum()):
            return self.buffer[begin:end], self.spans.reshape(-1, 2) - np.array([begin, 0])
        # Some of a large buffer: copying all of it would cost more than the places of the bytes to take.
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        bytes_of = np.arange(int(sizes.sum())) + np.repeat(offsets - leads - starts, sizes)
        return self.buffer[bytes_of], np.stack([starts + leads, lengths], axis=1)
