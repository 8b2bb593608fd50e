"""Tensors in messages of TensorFlow Serving."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto import tensor_pb2 as tensorboard_tensor
from tensorboard.util import tensor_util

from monolith.errors import InvalidArgumentError
from monolith.serving.protos import tensor_pb2 as messages
from monolith.serving.tensor_messages import (
    DTYPES,
    dtype_name,
    dtype_number,
    message_of,
    shape_message,
    strings_of,
    value_of,
)


def proto(**fields: object) -> messages.TensorProto:
    shape = fields.pop("shape")
    return messages.TensorProto(tensor_shape=shape_message(shape), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", list(DTYPES.values()), ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3, 2)], ids=str)
def test_a_tensor_round_trips_bit_for_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    count = int(np.prod(shape)) * dtype.itemsize
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (count,), generator=torch.Generator().manual_seed(3))
    tensor = raw.to(torch.uint8).view(dtype).reshape(shape)

    found = value_of(messages.TensorProto.FromString(message_of(tensor).SerializeToString()))

    assert isinstance(found, torch.Tensor)
    assert found.dtype == dtype
    assert found.shape == tensor.shape
    if len(raw):
        assert torch.equal(found.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3).t(),
        torch.arange(6)[::2],
        torch.ones(3, requires_grad=True),
        torch.tensor([1 + 2j, 3 - 4j]).conj(),
        torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
        torch.zeros(0, 3),
    ],
)
def test_views_are_sent_as_the_values_that_they_show(tensor: torch.Tensor) -> None:
    found = value_of(message_of(tensor))
    assert isinstance(found, torch.Tensor)
    assert found.tolist() == tensor.tolist()
    assert found.shape == tensor.shape


@pytest.mark.parametrize("kind", ["f4", "f8", "i4", "u1", "i2", "i1", "c8", "i8", "b1", "f2", "u2", "c16", "u4", "u8"])
def test_another_implementation_reads_what_is_written_and_its_lists_are_read(kind: str) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(kind)

    theirs = tensorboard_tensor.TensorProto.FromString(message_of(array).SerializeToString())
    assert np.array_equal(tensor_util.make_ndarray(theirs), array)

    for made in (
        tensor_util.make_tensor_proto(array),
        tensor_util.make_tensor_proto(array.ravel().tolist(), dtype=array.dtype, shape=[2, 3]),
    ):
        ours = value_of(messages.TensorProto.FromString(made.SerializeToString()))
        assert isinstance(ours, torch.Tensor)
        assert ours.dtype == torch.from_numpy(array).dtype
        assert np.array_equal(ours.numpy(), array)


def test_strings_go_both_ways_and_packed_strings_are_read() -> None:
    texts = [b"", b"a\x00b", b"x" * 300, "ü".encode()]
    array = np.array([*texts, *texts], object).reshape(2, 4)

    theirs = tensorboard_tensor.TensorProto.FromString(message_of(array).SerializeToString())
    assert tensor_util.make_ndarray(theirs).tolist() == array.tolist()
    found = value_of(message_of(texts))
    assert found.tolist() == texts

    content = bytes([0, 3, 0xAC, 0x02, 2]) + b"".join(texts)
    packed = value_of(proto(dtype=messages.DT_STRING, shape=[4], tensor_content=content))
    assert packed.tolist() == texts


@pytest.mark.parametrize("cut", range(1, 8))
def test_packed_strings_that_are_cut_short_are_refused(cut: int) -> None:
    content = (bytes([1, 2, 0x80 | 1, 0]) + b"abbc")[:-cut]
    with pytest.raises(InvalidArgumentError, match="does not hold the 3 strings"):
        value_of(proto(dtype=messages.DT_STRING, shape=[3], tensor_content=content))


def test_a_list_that_is_short_repeats_its_last_value_as_tensorflow_does() -> None:
    repeated = value_of(proto(dtype=messages.DT_FLOAT, shape=[2, 2], float_val=[1.0, 2.0]))
    none = value_of(proto(dtype=messages.DT_INT64, shape=[3]))
    pair = value_of(proto(dtype=messages.DT_COMPLEX64, shape=[2], scomplex_val=[1.0, 2.0]))
    text = value_of(proto(dtype=messages.DT_STRING, shape=[3], string_val=[b"a", b"b"]))

    assert repeated.tolist() == [[1.0, 2.0], [2.0, 2.0]]
    assert none.tolist() == [0, 0, 0]
    assert pair.tolist() == [1 + 2j, 1 + 2j]
    assert text.tolist() == [b"a", b"b", b"b"]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (proto(dtype=messages.DT_STRING, shape=[2], string_val=[b"a", b"b"]), [b"a", b"b"]),
        (proto(dtype=messages.DT_STRING, shape=[2], string_val=[b"a"]), [b"a", b"a"]),
        (proto(dtype=messages.DT_STRING, shape=[2], tensor_content=b"\x01\x01ab"), [b"a", b"b"]),
        (proto(dtype=messages.DT_STRING, shape=[], string_val=[b"a"]), [b"a"]),
    ],
)
def test_samples_are_read_from_every_form_of_one_dim(message: messages.TensorProto, expected: list[bytes]) -> None:
    assert strings_of(message) == expected


def test_samples_of_two_dims_are_refused_by_name() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^examples: bytes must have one dim, got 2$"):
        strings_of(proto(dtype=messages.DT_STRING, shape=[1, 1], string_val=[b"a"]), name="examples")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            proto(dtype=messages.DT_FLOAT, shape=[3], tensor_content=b"1234"),
            r"12 bytes expected for \[3\] of DT_FLOAT, got 4",
        ),
        (proto(dtype=messages.DT_FLOAT, shape=[1], float_val=[1, 2]), "1 values expected by its shape, got 2"),
        (proto(dtype=messages.DT_FLOAT, shape=[-1], float_val=[1]), r"known dims expected, got 1: \[-1\]"),
        (proto(dtype=messages.DT_FLOAT, shape=[1 << 40], float_val=[1]), "up to 64 MiB alone"),
        (proto(dtype=messages.DT_STRING, shape=[1 << 40]), "up to 64 MiB alone"),
        (proto(dtype=messages.DT_FLOAT, shape=[1 << 40] * 3, float_val=[1]), "known dims expected, got 3"),
        (proto(dtype=messages.DT_FLOAT, shape=[1 << 40, 1 << 40, 0]), "known dims expected, got 3"),
        (proto(dtype=messages.DT_FLOAT, shape=[1] * 17), "at most 16"),
        (proto(dtype=messages.DT_INT8, shape=[1], int_val=[300]), "int_val has a value that DT_INT8 cannot hold"),
        (proto(dtype=messages.DT_COMPLEX64, shape=[1], scomplex_val=[1]), "pairs of numbers expected"),
        (proto(dtype=messages.DT_RESOURCE, shape=[1]), "got DT_RESOURCE"),
        (proto(dtype=99, shape=[1]), "got data type 99"),
        (messages.TensorProto(), "got DT_INVALID"),
        (
            messages.TensorProto(dtype=messages.DT_FLOAT, tensor_shape=messages.TensorShapeProto(unknown_rank=True)),
            "got a tensor of unknown rank",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(message: messages.TensorProto, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^clicks: .*{words}"):
        value_of(message, name="clicks")


def test_bytes_other_than_zero_and_one_are_true() -> None:
    found = value_of(proto(dtype=messages.DT_BOOL, shape=[3], tensor_content=b"\x00\x01\xff"))
    assert isinstance(found, torch.Tensor)
    assert found.tolist() == [False, True, True]
    assert found.to(torch.uint8).tolist() == [0, 1, 1]


@given(st.binary(max_size=200))
def test_bytes_from_outside_are_a_tensor_or_a_refusal(data: bytes) -> None:
    message = messages.TensorProto()
    try:
        message.ParseFromString(data)
    except Exception as error:  # noqa: BLE001 - of protobuf, which has no common class for it
        assert type(error).__name__ == "DecodeError"  # noqa: PT017
        return
    try:
        value_of(message)
    except InvalidArgumentError:
        return


def test_tensors_that_cannot_be_sent_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="bytes expected in an array of objects, got str"):
        message_of(np.array(["a"], object))
    with pytest.raises(InvalidArgumentError, match="has no form in a message"):
        message_of(np.array(["2020-01-01"], "datetime64[D]"))
    with pytest.raises(InvalidArgumentError, match="has no form in a message"):
        message_of(torch.zeros(1, dtype=torch.float8_e5m2))


def test_dtypes_have_their_numbers_and_names() -> None:
    assert [dtype_number(None), dtype_number(torch.float32), dtype_number(torch.int64)] == [7, 1, 9]
    assert [dtype_name(1), dtype_name(7), dtype_name(1234)] == ["DT_FLOAT", "DT_STRING", "data type 1234"]
