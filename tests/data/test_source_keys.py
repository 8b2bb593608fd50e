"""Which source a sample comes from: out of the header of its record, or out of the message, never out of thin air."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from data.framed_files import frame
from monolith import cli
from monolith.data import BadRecords, Framing, Ids, Parser, RecordReader, RecordWriter, read_examples, source_key
from monolith.data.parser import source_keys_of, with_source_key
from monolith.data.protos.example_pb2 import Example, ExampleBatch
from monolith.data.protos.instance_pb2 import Instance
from monolith.data.records.framing import SampleFormat
from monolith.data.records.records import Records

NEWS, ADS = source_key("news"), source_key("ads_flow")
MESSAGES: dict[SampleFormat, type[Message]] = {
    SampleFormat.EXAMPLE: Example,
    SampleFormat.INSTANCE: Instance,
    SampleFormat.EXAMPLE_BATCH: ExampleBatch,
}


def example(key: int = 0) -> bytes:
    made = Example(label=[1.0], data_source_key=key)
    made.line_id.req_time = 5
    made.named_feature.add(name="user").feature.fid_v2_list.value.append(7)
    return made.SerializeToString()


def keys_of(parser: Parser, records: Records | list[bytes]) -> list[int]:
    column: Any = parser.parse(records)["key"]
    return list(column.tolist())


@given(st.lists(st.tuples(st.binary(max_size=300), st.integers(0, (1 << 32) - 1), st.booleans()), max_size=6))
def test_the_key_of_a_message_is_what_protobuf_reads(parts: list[tuple[bytes, int, bool]]) -> None:
    for sample, kind in MESSAGES.items():
        records = []
        for text, key, is_first in parts:
            message: Any = kind(data_source_key=key)
            if not is_first:
                records.append(message.SerializeToString())
                continue
            rest: Any = kind()
            named = rest.named_feature_list if kind is ExampleBatch else None
            if named is not None:
                named.add(name="x").feature.add().bytes_list.value.append(text)
            elif kind is Example:
                rest.named_feature.add(name="x").feature.bytes_list.value.append(text)
            else:
                rest.feature.add(name="x", bytes_value=[text])
            # Fields in another order than protobuf writes them, one of them twice.
            records.append(message.SerializeToString() + rest.SerializeToString())
        wanted = [kind.FromString(record).data_source_key for record in records]  # type: ignore[attr-defined]
        assert source_keys_of(records, sample).tolist() == wanted
        stamped = [with_source_key(record, sample, NEWS) for record in records]
        assert [kind.FromString(each).data_source_key for each in stamped] == [NEWS] * len(parts)  # type: ignore[attr-defined]


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_any_bytes_are_looked_through_to_an_end(records: list[bytes]) -> None:
    for sample in MESSAGES:
        assert len(source_keys_of(records, sample)) == len(records)


@pytest.mark.parametrize("framing", [Framing.PLAIN, Framing.SORT_ID, Framing.TFRECORD, Framing.KAFKA_PREFIX])
def test_what_stands_in_front_of_other_framings_is_no_key(tmp_path: Path, framing: Framing) -> None:
    path = tmp_path / "x"
    path.write_bytes(frame(framing, example(NEWS), word=ADS) + frame(framing, example(), word=ADS))
    parser = Parser("example", [Ids("user")], source_key="key")
    with RecordReader(path, framing) as reader:
        (block,) = reader.blocks()
    assert keys_of(parser, block) == [NEWS, 0]
    with pytest.raises(ValueError, match="only records of the framing LAGRANGEX"):
        block.source_keys()


def test_the_header_counts_unless_it_has_none(tmp_path: Path) -> None:
    path = tmp_path / "x"
    words = [(NEWS | 1, 0), (NEWS | 1, ADS), (1, ADS), (0, 0)]
    path.write_bytes(b"".join(frame(Framing.LAGRANGEX, example(own), word=word) for word, own in words))
    parser = Parser("example", [Ids("user")], source_key="key")
    with RecordReader(path, "lagrangex") as reader:
        (block,) = reader.blocks()
    assert keys_of(parser, block) == [NEWS, NEWS, ADS, 0]
    assert keys_of(parser, block[1:3]) == [NEWS, ADS]
    assert keys_of(parser, block.take(np.array([2, 0]))) == [ADS, NEWS]
    assert keys_of(parser, Records.join([block[:1], block[3:]])) == [NEWS, 0]
    mixed = Records.join([block, Records.from_list([example()])])
    assert Parser("example", [Ids("user")]).parse(mixed[1:]).num_rows == 4
    with pytest.raises(ValueError, match="with and without lagrangex headers were joined"):
        parser.parse(mixed)


def test_every_row_of_a_batch_has_the_key_of_its_record() -> None:
    def batch(rows: int, key: int) -> bytes:
        made = ExampleBatch(batch_size=rows, data_source_key=key)
        column = made.named_feature_list.add(name="user")
        for _ in range(rows):
            column.feature.add().fid_v2_list.value.append(1)
        return made.SerializeToString()

    parser = Parser("example_batch", [Ids("user")], bad=BadRecords(1), source_key="key")
    wrong = ExampleBatch(batch_size=3, data_source_key=9)
    wrong.named_feature_list.add(name="user").feature.add()
    records = [batch(2, NEWS), wrong.SerializeToString(), batch(0, 5), batch(1, ADS)]
    assert keys_of(parser, records) == [NEWS, NEWS, ADS]


def test_a_sample_of_another_format_has_no_key() -> None:
    sample = b"\x0a\x0d\x0a\x0b\x0a\x01a\x12\x06\x1a\x04\x0a\x02\x01\x02"
    assert keys_of(Parser("tf_example", [Ids("a", slot=1)], source_key="key"), [sample]) == [0]


def test_a_converted_file_keeps_the_keys_of_its_headers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, same, other = tmp_path / "old", tmp_path / "same", tmp_path / "other"
    source.write_bytes(b"".join(frame(Framing.LAGRANGEX, example(), word=key | 1) for key in (NEWS, ADS)))
    for out, to in ((same, "example"), (other, "instance")):
        arguments = ["data", "convert", str(source), "--framing", "lagrangex", "--out", str(out), "--to", to]
        assert cli.main(arguments) == 0
    assert [Example.FromString(each).data_source_key for each in read_examples(same, "tfrecord")] == [NEWS, ADS]
    instances = read_examples(other, "tfrecord", sample="instance")
    assert [Instance.FromString(each).data_source_key for each in instances] == [NEWS, ADS]
    with RecordWriter(same, "tfrecord") as writer:
        writer.write(example(NEWS))
    assert cli.main(["data", "peek", str(same)]) == 0
    assert f"data_source_key   {NEWS}" in capsys.readouterr().out
