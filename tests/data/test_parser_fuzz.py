"""Damaged and random records never crash the parser, and never make it lose a row without counting it.

What protobuf's own parser takes is taken with the same result, as far as the columns look; groups, which no message of
ours has, are the exception.
"""

from __future__ import annotations

import random
import resource

import pytest
from google.protobuf.message import DecodeError

from data.parser_reference import ids_of, named
from monolith.data import BadRecords, DenseColumn, Ids, Label, LineIdField, NestedIds, Parser, Weight
from monolith.data.protos.example_pb2 import Example, ExampleBatch
from monolith.data.protos.instance_pb2 import Instance
from monolith.data.protos.tf_example_pb2 import Example as TfExample
from monolith.errors import ResourceExhaustedError
from monolith.tensors import Ragged
from monolith.testing.serving_examples import generate_example_batch


def example() -> Example:
    made = Example(label=[1.0, 0.0], instance_weight=2.0)
    made.line_id.uid, made.line_id.sample_rate = 5, 0.5
    made.line_id.actions.extend([1, 2, 300])
    made.named_feature.add(name="user", id=3).feature.fid_v1_list.value.extend([1 << 60, 2, 3])
    made.named_feature.add(name="lists").feature.fid_v2_lists.list.add().value.extend([4, 5])
    made.named_feature.add(name="dense").feature.float_list.value.extend([1, 2, 3])
    made.named_feature.add(name="ints").feature.int64_list.value.extend([1, -1, 1 << 40])
    made.named_raw_feature.add(name="raw").raw_feature.feature.add().int64_value = 7
    return made


def records_of(sample: str) -> list[bytes]:
    if sample == "example":
        return [example().SerializeToString()]
    if sample == "example_batch":
        return [generate_example_batch(seed=seed).SerializeToString() for seed in range(2)]
    if sample == "instance":
        instance = Instance(fid=[5 << 54 | 1, 7 << 54 | 2], value=[1.0], label=[0.0], line_id=example().line_id)
        instance.feature.add(name="lists").fid_list.add().value.extend([1, 2])
        instance.feature.add(name="user", fid=[1, 2])
        return [instance.SerializeToString()]
    made = TfExample()
    made.features.feature["user"].int64_list.value.extend([1, -5])
    made.features.feature["dense"].float_list.value.extend([1.0, 2.0])
    return [made.SerializeToString()]


def parser_of(sample: str, bad: BadRecords) -> Parser:
    ids = ["user", "f_user_id", "f_user_id-f_page", "f_goods_id", "fc_slot_5", "fc_slot_7"]
    columns = [
        *map(Ids, ids),
        DenseColumn("dense", width=2),
        DenseColumn("ints", width=2, dtype="int64"),
        Label(),
        Weight(),
    ]
    if sample == "tf_example":
        return Parser(sample, columns, bad=bad)
    return Parser(sample, [*columns, NestedIds("lists"), LineIdField("uid"), LineIdField("actions")], bad=bad)


def damaged(record: bytes, rng: random.Random) -> bytes:
    data = bytearray(record)
    for _ in range(rng.randint(1, 2)):
        kind, at = rng.choice([0, 0, 0, 1, 1, 2, 3, 4]), rng.randrange(max(1, len(data)))
        if kind == 0 and data:
            data[at] = rng.randrange(256)
        elif kind == 1 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del data[at : at + rng.randint(1, 9)]
        elif kind == 3:
            data[at:at] = rng.randbytes(rng.randint(1, 9))
        else:
            piece = data[at : at + rng.randint(1, 40)]
            data[rng.randrange(len(data) + 1) : 0] = piece
    return bytes(data)


@pytest.mark.parametrize("sample", ["example", "example_batch", "instance", "tf_example"])
def test_damaged_records_are_read_or_counted(sample: str) -> None:
    rng = random.Random(11)  # noqa: S311 - repeatable, not secret
    seeds = records_of(sample)
    bad = BadRecords(limit=1 << 40)
    parser = parser_of(sample, bad)
    read = 0
    for _ in range(400):
        records = [damaged(rng.choice(seeds), rng) for _ in range(10)] + [rng.randbytes(rng.randrange(60))]
        before = bad.count
        try:
            batch = parser.parse(records)
        except ResourceExhaustedError:
            continue
        left_out = bad.count - before
        if sample != "example_batch":
            assert batch.num_rows + left_out == len(records)
        for name in batch:
            column = batch[name]
            if isinstance(column, Ragged):
                Ragged(column.values, column.row_splits)  # checks its splits
        read += batch.num_rows
    assert read > 500
    assert bad.count > 500


def test_what_protobuf_takes_is_taken_alike() -> None:
    rng = random.Random(12)  # noqa: S311 - repeatable, not secret
    seed = example().SerializeToString()
    bad = BadRecords(limit=1 << 40)
    parser = Parser("example", [Ids("user")], bad=bad)
    compared = refused = 0
    for _ in range(4000):
        record = damaged(seed, rng)
        batch = parser.parse([record])
        try:
            message = Example.FromString(record)
        except DecodeError:
            continue
        users = named(message, "user")
        if any(feature.WhichOneof("type") not in {None, "fid_v1_list"} for feature in users):
            continue
        if batch.num_rows == 0:
            refused += 1
            continue
        column = batch["user"]
        assert isinstance(column, Ragged)
        assert column.to_lists() == [[number for feature in users for number in ids_of(feature)]]
        compared += 1
    assert compared > 500
    assert refused < 20  # groups


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["example", "example_batch"])
def test_parsing_good_and_bad_records_for_long_takes_no_more_memory(sample: str) -> None:
    rng = random.Random(13)  # noqa: S311 - repeatable, not secret
    good = records_of(sample) * 50
    bad_ones = [damaged(record, rng) for record in good]
    bad_ones = [record for record in bad_ones if sample == "example" or 0 <= size_of(record) < 100]
    parser = parser_of(sample, BadRecords(limit=1 << 40))

    def work(times: int) -> int:
        for _ in range(times):
            parser.parse(good)
            parser.parse(bad_ones)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = work(100)
    assert work(600) - before < 8192  # KiB; each round parses far more than a hundredth of that


def size_of(record: bytes) -> int:
    try:
        return ExampleBatch.FromString(record).batch_size
    except DecodeError:
        return 0


def test_a_list_in_many_pieces_takes_no_more_than_its_length() -> None:
    """A hundred thousand single elements, or the same name again and again, must not take quadratic time."""
    element = b"\x09" + b"\x01".ljust(8, b"\0")
    ids = element * 100_000
    feature = b"\x12" + varint(len(ids)) + ids
    named_feature = b"\x0a\x04user\x12" + varint(len(feature)) + feature
    record = b"\x0a" + varint(len(named_feature)) + named_feature
    column = Parser("example", [Ids("user")]).parse([record])["user"]
    assert isinstance(column, Ragged)
    assert column.lengths().tolist() == [100_000]
    small = Example()
    for name in ("user", "item") * 20_000:
        small.named_feature.add(name=name).feature.fid_v2_list.value.append(1)
    column = Parser("example", [Ids("user"), Ids("item")]).parse([small.SerializeToString()])["item"]
    assert isinstance(column, Ragged)
    assert column.lengths().tolist() == [20_000]


def varint(number: int) -> bytes:
    encoded = b""
    while number >= 128:
        encoded += bytes([number & 127 | 128])
        number >>= 7
    return encoded + bytes([number])
