"""From messages to records: what lies inside each message, and where each record came from."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Self, TypeAlias, cast

import numpy as np

from monolith import _core
from monolith.data.framing import Framing
from monolith.data.framing_check import better_framings, framings_of, is_sample
from monolith.data.record_reader import split_records
from monolith.data.records import Places, Records
from monolith.errors import DataLossError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from monolith.data.bad_records import BadRecords
    from monolith.data.kafka.position import Partition
    from monolith.data.sample_format import SampleFormat


@dataclass(frozen=True, slots=True)
class Chunk:
    """Messages of one partition, offsets rising."""

    partition: Partition
    values: list[bytes | None]
    offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, part: slice) -> Self:
        return type(self)(self.partition, self.values[part], self.offsets[part])


@dataclass(frozen=True, slots=True)
class Unwrapping:
    """Takes the records out of messages; a message that is not as it should be is bad as a whole.

    A message without a value, which deletes a key from a compacted topic, holds no record.
    """

    framing: Framing | None
    sample: SampleFormat
    max_record_bytes: int
    bad: BadRecords

    def records(self, chunks: Sequence[Chunk], origin: str) -> Records:
        """The records of these messages, in their order; each knows the message it came in.

        Raises:
            DataLossError: more messages are bad than may be left out; names topic, partition and offset.
        """
        joined = _Joined.of(chunks)
        spans, messages = self._whole_messages(joined) if self.framing is None else self._framed(joined, self.framing)
        places = joined.places if messages is None else joined.places[messages]
        has_keys = self.framing is Framing.LAGRANGEX
        return Records(joined.buffer, spans, origin, places=places, has_source_keys=has_keys)

    def check_first(self, chunk: Chunk) -> bool:
        """Refuses a first message that has another framing than it is said to have, and says which; False if empty.

        Raises:
            DataLossError: it has; reading on would give records that are none.
        """
        value = chunk.values[0]
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
        spans = np.stack([joined.begins, joined.lengths], axis=1)
        too_long = joined.lengths > self.max_record_bytes
        if not too_long.any():
            return spans.reshape(-1), None
        for index in np.flatnonzero(too_long).tolist():
            size = joined.lengths[index]
            self.bad.add(
                f"{joined.places.text_of(index)}: a message of {size} bytes, the limit is {self.max_record_bytes}"
            )
        fine = np.flatnonzero(~too_long)
        return np.ascontiguousarray(spans[fine]).reshape(-1), fine

    def _framed(self, joined: _Joined, framing: Framing) -> _Found:
        # As a rule all messages are as they should be: then they are one stream of records, scanned at once.
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
        """Message by message, to find the bad ones."""
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
    """The values of messages end to end; those without one are left out."""

    places: Places
    buffer: npt.NDArray[np.uint8]
    begins: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> Self:
        places = Places(
            tuple(f"{chunk.partition}, offset" for chunk in chunks),
            np.repeat(np.arange(len(chunks)), [len(chunk) for chunk in chunks]),
            np.concatenate([chunk.offsets for chunk in chunks]),
        )
        values = chunks[0].values if len(chunks) == 1 else list(chain.from_iterable(chunk.values for chunk in chunks))
        try:
            joined = b"".join(cast("list[bytes]", values))
        except TypeError:  # sooner tried than looked through: a message without a value is rare
            places = places[np.array([index for index, value in enumerate(values) if value is not None], np.int64)]
            values = [value for value in values if value is not None]
            joined = b"".join(cast("list[bytes]", values))
        lengths = np.fromiter(map(len, cast("list[bytes]", values)), np.int64, len(values))
        return cls(places, np.frombuffer(joined, np.uint8), np.cumsum(lengths) - lengths, lengths)
