"""Extraction of records from messages, with the origin of each record."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np

from monolith import _core
from monolith.data.records.framing import Framing, better_framings, framings_of, is_sample
from monolith.data.records.reader import split_records
from monolith.data.records.records import Places, Records
from monolith.errors import DataLossError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from monolith.data.kafka.position import Partition
    from monolith.data.records.bad_records import BadRecords
    from monolith.data.records.framing import SampleFormat


@dataclass(frozen=True, slots=True)
class Chunk:
    """Messages of one partition, offsets rising. Their values lie in one buffer, which other chunks may share."""

    partition: Partition
    buffer: npt.NDArray[np.uint8]
    begins: npt.NDArray[np.int64]
    """Start of each value in the buffer; they are contiguous."""
    lengths: npt.NDArray[np.int64]
    """Length of each value; -1 for a message without one, which deletes a key from a compacted topic."""
    offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, rows: slice | npt.NDArray[np.bool_]) -> Self:
        return type(self)(self.partition, self.buffer, self.begins[rows], self.lengths[rows], self.offsets[rows])

    @property
    def values(self) -> list[bytes | None]:
        """Copies of the values."""
        places = zip(self.begins.tolist(), self.lengths.tolist(), strict=True)
        return [None if length < 0 else self.buffer[at : at + length].tobytes() for at, length in places]

    @property
    def num_bytes(self) -> int:
        """Size of all values together."""
        return int(self.lengths.sum()) + int((self.lengths < 0).sum())

    def stretch(self) -> tuple[int, int]:
        """Start and end of the part of the buffer with the values; there may be others between them."""
        if not len(self):
            return 0, 0
        return int(self.begins[0]), int(self.begins[-1]) + max(0, int(self.lengths[-1]))

    def alone(self) -> Self:
        """Returns the same messages, copied if their buffer is much larger than they are."""
        begin, end = self.stretch()
        if 2 * (end - begin) >= len(self.buffer):
            return self
        return replace(self, buffer=self.buffer[begin:end].copy(), begins=self.begins - begin)


@dataclass(frozen=True, slots=True)
class Unwrapping:
    """Extracts the records of messages; a malformed message is rejected completely.

    A message without a value, which deletes a key from a compacted topic, holds no record.
    """

    framing: Framing | None
    sample: SampleFormat
    max_record_bytes: int
    bad: BadRecords

    def records(self, chunks: Sequence[Chunk], origin: str) -> Records:
        """Returns the records of these messages, in order, each with the place of its message."""
        joined = _Joined.of(chunks)
        spans, messages = self._whole_messages(joined) if self.framing is None else self._framed(joined, self.framing)
        places = joined.places if messages is None else joined.places[messages]
        has_keys = self.framing is Framing.LAGRANGEX
        return Records(joined.buffer, spans, origin, places=places, has_source_keys=has_keys)

    def check_first(self, chunk: Chunk) -> bool:
        """Refuses a first message with another framing than the declared one, and names it; False if empty."""
        value = chunk[:1].values[0]
        if not value:
            return False
        head = np.frombuffer(value, np.uint8)
        if self.framing is not None:
            better = better_framings(head, self.framing, self.sample, at_end=True)
        else:
            better = [] if is_sample(value, self.sample) else framings_of(head, self.sample, at_end=True)
        if better:
            names = " or ".join(repr(other.name.lower()) for other in better)
            said = "without a framing" if self.framing is None else f"of framing {self.framing.name}"
            place = f"{chunk.partition}, offset {chunk.offsets[0]}"
            raise DataLossError(f"{place}: not {self.sample.name} records {said}; the message fits framing={names}")
        return True

    def _whole_messages(self, joined: _Joined) -> _Found:
        spans = np.empty((len(joined.lengths), 2), np.int64)
        spans[:, 0], spans[:, 1] = joined.begins, joined.lengths
        too_long = joined.lengths > self.max_record_bytes
        if not too_long.any():
            return spans.reshape(-1), None
        for index in np.flatnonzero(too_long).tolist():
            place, size = joined.places.text_of(index), joined.lengths[index]
            self.bad.add(f"{place}: a message of {size} bytes, the limit is {self.max_record_bytes}")
        fine = np.flatnonzero(~too_long)
        return np.ascontiguousarray(spans[fine]).reshape(-1), fine

    def _framed(self, joined: _Joined, framing: Framing) -> _Found:
        # Usually all messages are valid: then they are one stream of records, scanned in one pass.
        spans, _, _, problem, _, _ = _core.scan_frames(
            joined.buffer,
            0,
            framing=framing.value,
            at_end=True,
            max_record_bytes=self.max_record_bytes,
            max_records=1 << 62,
        )
        record_ends = spans[::2] + spans[1::2] + framing.tail
        ends = joined.begins + joined.lengths
        if not problem:
            # The end of each message is the end of a record; an empty one ends where the one before it does.
            places = np.searchsorted(record_ends, ends)
            is_end = record_ends.take(places, mode="clip") == ends if len(record_ends) else ends == 0
            if (is_end | (joined.lengths == 0)).all():
                return spans, np.searchsorted(ends, record_ends)
        return self._framed_one_by_one(joined, framing)

    def _framed_one_by_one(self, joined: _Joined, framing: Framing) -> _Found:
        """Parses message by message, to find the bad ones."""
        spans: list[npt.NDArray[np.int64]] = [np.empty((0, 2), np.int64)]
        messages: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
        for index, (begin, length) in enumerate(zip(joined.begins.tolist(), joined.lengths.tolist(), strict=True)):
            payload = joined.buffer[begin : begin + length].tobytes()
            try:
                records = split_records(
                    payload, framing, origin=joined.places.text_of(index), max_record_bytes=self.max_record_bytes
                )
            except DataLossError as error:
                self.bad.add(f"{error}")
                continue
            spans.append(records.spans.reshape(-1, 2) + np.array([begin, 0]))
            messages.append(np.full(len(records), index, np.int64))
        return np.concatenate(spans).reshape(-1), np.concatenate(messages)


_Found: TypeAlias = "tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None]"
"""Spans of the records, and the number of each one's message; None when that is the record's own."""


@dataclass(frozen=True, slots=True)
class _Joined:
    """The concatenated values of messages; messages without a value are skipped."""

    places: Places
    buffer: npt.NDArray[np.uint8]
    begins: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> Self:
        names = tuple(f"{chunk.partition}, offset" for chunk in chunks)
        if len(chunks) == 1:
            (chunk,) = chunks
            begin, end = chunk.stretch()
            ends = chunk.lengths.cumsum()
            if len(chunk) and ends[-1] == end - begin:  # most often: nothing to bring together, none without a value
                places = Places(names, np.zeros(len(chunk), np.int64), chunk.offsets)
                return cls(places, chunk.buffer[begin:end], ends - chunk.lengths, chunk.lengths)
        origins = np.repeat(np.arange(len(chunks)), [len(chunk) for chunk in chunks])
        places = Places(names, origins, np.concatenate([chunk.offsets for chunk in chunks]))
        lengths = np.concatenate([chunk.lengths for chunk in chunks])
        if len(lengths) and lengths.min() < 0:
            places, lengths = places[np.flatnonzero(lengths >= 0)], lengths[lengths >= 0]
        return cls(places, _end_to_end(chunks), lengths.cumsum() - lengths, lengths)


def _end_to_end(chunks: Sequence[Chunk]) -> npt.NDArray[np.uint8]:
    """Returns the values of chunks in one buffer, without a copy if they are contiguous, as those fetched together."""
    pieces: list[tuple[npt.NDArray[np.uint8], int, int]] = []
    for chunk in chunks:
        begin, end = chunk.stretch()
        if end - begin != chunk.num_bytes:  # there are others between them, which were fetched before
            values = np.frombuffer(b"".join(filter(None, chunk.values)), np.uint8)
            pieces.append((values, 0, len(values)))
        elif pieces and pieces[-1][0] is chunk.buffer and pieces[-1][2] == begin:
            pieces[-1] = chunk.buffer, pieces[-1][1], end
        else:
            pieces.append((chunk.buffer, begin, end))
    if len(pieces) == 1:
        buffer, begin, end = pieces[0]
        return buffer[begin:end]
    return np.concatenate([buffer[begin:end] for buffer, begin, end in pieces])
