"""TFRecord files of others are read; a flipped bit is found wherever it is."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter as TensorboardWriter

from data.framed_files import frame, framed, samples
from monolith.data import BadRecords, Framing, read_examples, write_examples
from monolith.errors import DataLossError


def test_a_file_of_tensorboard_is_read(tmp_path: Path) -> None:
    events = [Event(step=step, wall_time=1.5 * step).SerializeToString() for step in range(100)]
    path = tmp_path / "events"
    with path.open("wb") as file:
        writer = TensorboardWriter(file)
        for event in events:
            writer.write(event)
        writer.flush()
    assert list(read_examples(path, "tfrecord", sample="plaintext")) == events
    write_examples(tmp_path / "ours", events, "tfrecord")
    assert (tmp_path / "ours").read_bytes() == path.read_bytes()


def test_every_flipped_bit_is_found() -> None:
    payloads = [b"", b"abc", samples(5)[4]]
    data = framed(Framing.TFRECORD, payloads)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DataLossError, match=r"offset \d+: (checksum|record)"):
            list(read_examples(io.BytesIO(bytes(damaged)), "tfrecord", sample="plaintext"))


def test_a_bad_payload_costs_one_record() -> None:
    payloads = samples(10)
    data = bytearray(framed(Framing.TFRECORD, payloads))
    data[len(framed(Framing.TFRECORD, payloads[:4])) + 12] ^= 1
    bad = BadRecords(limit=1)
    assert list(read_examples(io.BytesIO(bytes(data)), "tfrecord", bad=bad)) == payloads[:4] + payloads[5:]
    assert bad.count == 1


@pytest.mark.parametrize("place", [0, 4, 9])
def test_a_bad_length_costs_one_record_because_the_next_head_is_found(place: int) -> None:
    big = [b"q" * 700_000, *samples(6), b"z" * 900_000]
    for index in (0, 3, 7):
        data = bytearray(framed(Framing.TFRECORD, big))
        data[len(framed(Framing.TFRECORD, big[:index])) + place] ^= 0x10
        bad = BadRecords(limit=1)
        read = list(read_examples(io.BytesIO(bytes(data)), "tfrecord", sample="plaintext", bad=bad))
        assert read == big[:index] + big[index + 1 :]
        assert bad.count == 1


@given(st.lists(st.binary(max_size=60), max_size=8), st.data())
def test_records_skipped_and_records_read_add_up_to_all_records(payloads: list[bytes], data: st.DataObject) -> None:
    frames = [frame(Framing.TFRECORD, payload) for payload in payloads]
    damaged = data.draw(st.sets(st.integers(0, len(frames) - 1))) if frames else set()
    for index in damaged:
        at = data.draw(st.integers(0, len(frames[index]) - 1))
        flip = data.draw(st.integers(1, 255))
        frames[index] = frames[index][:at] + bytes([frames[index][at] ^ flip]) + frames[index][at + 1 :]
    bad = BadRecords(limit=100)
    read = list(read_examples(io.BytesIO(b"".join(frames)), "tfrecord", sample="plaintext", bad=bad))
    # Neighbouring bad records may be passed over in one go, when their lengths are damaged.
    assert read == [payload for index, payload in enumerate(payloads) if index not in damaged]
    assert bool(bad.count) == bool(damaged)
    assert bad.count <= len(damaged)


def test_another_framing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "plain"
    write_examples(path, samples(10))
    with pytest.raises(
        DataLossError, match=r"not EXAMPLE records of framing TFRECORD; the start of the file fits PLAIN"
    ):
        list(read_examples(path, "tfrecord"))
