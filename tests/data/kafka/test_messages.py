"""What is inside a message: records of every framing, nothing, or something that should not be there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.framed_files import framed, samples
from data.kafka_chunks import chunk_of
from monolith import _core
from monolith.data import BadRecords, Framing, Ids, Parser, SampleFormat
from monolith.data.kafka import Partition
from monolith.data.kafka.messages import Chunk, Unwrapping
from monolith.errors import DataLossError, InvalidArgumentError

ONE, OTHER = Partition("clicks", 1), Partition("views", 0)


def unwrapping(
    framing: Framing | None,
    *,
    sample: SampleFormat = SampleFormat.PLAINTEXT,
    limit: int = 0,
    max_record_bytes: int = 1 << 20,
) -> Unwrapping:
    return Unwrapping(framing=framing, sample=sample, max_record_bytes=max_record_bytes, bad=BadRecords(limit))


def chunk(values: list[bytes | None], *, first: int = 0, partition: Partition = ONE) -> Chunk:
    return chunk_of(partition, values, np.arange(first, first + len(values)))


MESSAGES = st.lists(st.none() | st.lists(st.binary(max_size=20), max_size=4), max_size=8)


@given(st.sampled_from(list(Framing)), MESSAGES, st.integers(0, 8))
def test_records_of_every_framing_come_out_with_their_place(
    framing: Framing, messages: list[list[bytes] | None], cut: int
) -> None:
    values = [None if records is None else framed(framing, records) for records in messages]
    chunks = [chunk(values[:cut], first=100), chunk(values[cut:], first=7, partition=OTHER)]
    found = unwrapping(framing).records(chunks, "Kafka")
    assert list(found) == [record for records in messages for record in records or []]
    places = [f"{ONE}, offset {100 + i}" for i in range(len(values[:cut]))]
    places += [f"{OTHER}, offset {7 + i}" for i in range(len(values[cut:]))]
    expected = [place for place, records in zip(places, messages, strict=True) for _ in records or []]
    assert [found.place_of(i) for i in range(len(found))] == expected
    assert [found[1::2].place_of(i) for i in range(len(expected[1::2]))] == expected[1::2]
    assert list(found[1::2]) == list(found)[1::2]


@given(st.lists(st.none() | st.binary(max_size=20), min_size=1, max_size=8))
def test_without_framing_a_message_is_a_record_and_an_absent_value_is_none(values: list[bytes | None]) -> None:
    found = unwrapping(None).records([chunk(values, first=5)], "Kafka")
    assert list(found) == [value for value in values if value is not None]
    expected = [f"{ONE}, offset {5 + i}" for i, value in enumerate(values) if value is not None]
    assert [found.place_of(i) for i in range(len(found))] == expected


@pytest.mark.parametrize("framing", list(Framing))
def test_a_bad_message_is_skipped_entirely_and_named(framing: Framing) -> None:
    good, cut = framed(framing, [b"one", b"two"]), framed(framing, [b"three", b"four"])[:-1]
    values: list[bytes | None] = [good, cut, None, good]
    with pytest.raises(DataLossError, match=r"topic 'clicks', partition 1, offset 31"):
        unwrapping(framing).records([chunk(values, first=30)], "Kafka")
    lenient = unwrapping(framing, limit=1)
    found = lenient.records([chunk(values, first=30)], "Kafka")
    assert list(found) == [b"one", b"two"] * 2
    assert [found.place_of(i)[-2:] for i in range(4)] == ["30", "30", "33", "33"]
    assert lenient.bad.count == 1


def test_a_message_cut_short_is_not_completed_by_the_next_one() -> None:
    whole = framed(Framing.PLAIN, [b"payload"])
    lenient = unwrapping(Framing.PLAIN, limit=2)
    assert list(lenient.records([chunk([whole[:10], whole[10:]])], "Kafka")) == []
    assert lenient.bad.count == 2


@pytest.mark.parametrize("framing", [None, Framing.PLAIN, Framing.TFRECORD])
def test_a_record_over_the_limit_is_bad(framing: Framing | None) -> None:
    records = [b"x" * 10, b"y" * 11, b"z"]
    values: list[bytes | None] = [each if framing is None else framed(framing, [each]) for each in records]
    lenient = unwrapping(framing, limit=1, max_record_bytes=10)
    found = lenient.records([chunk(values)], "Kafka")
    assert list(found) == [records[0], records[2]]
    assert found.place_of(1).endswith("offset 2")
    (text,) = lenient.bad.first
    assert "offset 1" in text
    assert "11" in text


@pytest.mark.parametrize("framing", list(Framing))
def test_a_framing_that_was_not_expected_is_named(framing: Framing) -> None:
    value = framed(framing, samples(6), word=3)
    said = unwrapping(None, sample=SampleFormat.EXAMPLE)
    with pytest.raises(
        DataLossError, match=rf"offset 4: not EXAMPLE records without.*framing=.*'{framing.name.lower()}'"
    ):
        said.check_first(chunk([value], first=4))
    assert unwrapping(framing, sample=SampleFormat.EXAMPLE).check_first(chunk([value]))


def test_a_message_without_framing_is_not_mistaken() -> None:
    said = unwrapping(None, sample=SampleFormat.EXAMPLE)
    assert all(said.check_first(chunk([value])) for value in samples(6))
    assert not said.check_first(chunk([None]))
    assert unwrapping(None).check_first(chunk([framed(Framing.PLAIN, samples(1))]))


def test_a_parser_names_the_message_of_a_bad_sample() -> None:
    found = unwrapping(None).records([chunk([samples(1)[0], b"\xff\xff"], first=9)], "Kafka")
    with pytest.raises(DataLossError, match=r"topic 'clicks', partition 1, offset 10"):
        Parser("example", [Ids("user")]).parse(found)


@given(
    st.lists(st.tuples(st.none() | st.binary(max_size=20), st.booleans()), min_size=1, max_size=12), st.integers(0, 12)
)
def test_messages_that_were_picked_out_of_a_buffer_keep_their_values(
    messages: list[tuple[bytes | None, bool]], cut: int
) -> None:
    whole = chunk([value for value, _ in messages], first=3)
    kept = np.array([is_kept for _, is_kept in messages])
    parts = [whole[:cut][kept[:cut]], whole[cut:][kept[cut:]].alone()]
    found = unwrapping(None).records(parts, "Kafka")
    expected = [(value, 3 + i) for i, (value, is_kept) in enumerate(messages) if is_kept and value is not None]
    assert list(found) == [value for value, _ in expected]
    assert [found.place_of(i) for i in range(len(found))] == [f"{ONE}, offset {offset}" for _, offset in expected]


def test_a_small_part_does_not_hold_a_large_buffer() -> None:
    whole = chunk([b"x" * 100, b"yy", b"x" * 100])
    part = whole[1:2].alone()
    assert part.values == [b"yy"]
    assert len(part.buffer) == 2
    assert whole[:2].alone().buffer is whole.buffer


class Asked:
    """What a client returns, as far as it is asked; written in Python, unlike that of the client."""

    def __init__(self, value: Any, *, offset: Any = 0, error: str | None = None) -> None:
        self._value, self._offset, self._error = value, offset, error

    def value(self) -> Any:
        return self._value

    def offset(self) -> Any:
        return self._offset

    def partition(self) -> int:
        return 7

    def error(self) -> str | None:
        return self._error


def test_all_fields_of_messages_are_gathered_in_one_call() -> None:
    gathered = _core.gather_messages([Asked(b"abc", offset=5), Asked(None, offset=9), Asked(b""), Asked(b"de")])
    assert gathered is not None
    buffer, begins, lengths, offsets, partitions = gathered
    assert buffer.tobytes() == b"abcde"
    assert begins.tolist() == [0, 3, 3, 3]
    assert lengths.tolist() == [3, -1, 0, 2]
    assert offsets.tolist() == [5, 9, 0, 0]
    assert partitions.tolist() == [7, 7, 7, 7]


def test_an_event_between_messages_is_not_gathered_as_a_message() -> None:
    assert _core.gather_messages([Asked(b"abc"), Asked(b"the end", error="end")]) is None


@pytest.mark.parametrize("wrong", [Asked("text"), Asked(b"", offset=None), Asked(b"", offset="1"), object()])
def test_what_is_no_message_is_refused(wrong: Any) -> None:
    with pytest.raises((TypeError, AttributeError)):
        _core.gather_messages([Asked(b"abc"), wrong])
    with pytest.raises(InvalidArgumentError):
        _core.gather_messages([])
