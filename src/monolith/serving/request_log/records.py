"""Records of answered requests.

A record is a ``JoinEvent`` whose sample is an ``Example`` with the features of the request and the answer: the feature
``__SERVED__`` has model, signature, version, request and index in it as JSON, and ``__SERVED__/NAME`` the output of
that name. The joiner copies all of it to its examples.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from google.protobuf.message import DecodeError

from monolith.data import LABEL_FEATURE, FeaturePruning, example_of_instance, examples_of_batch, with_typed_fields
from monolith.data.protos.example_pb2 import Example, ExampleBatch
from monolith.data.protos.instance_pb2 import Instance
from monolith.errors import DataLossError
from monolith.ids import v1_to_v2
from monolith.online.joiner import impression_record
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor


class AnsweredRequest(NamedTuple):
    """A request and its answer. Must not be modified after it is submitted."""

    request_id: bytes
    model: str
    signature: str
    inputs: Mapping[str, Any]
    """Columns that the signature reads, each with ``kind`` and ``dtype``."""
    columns: Mapping[str, Tensor | Ragged | list[bytes]]
    """Columns as requested: one row per example, or one for all; or encoded samples under one of their names."""
    num_examples: int
    outputs: Mapping[str, Tensor]
    version: Any
    """Model version of the answer: ``export``, ``dense`` and ``sparse``."""

    @property
    def is_encoded(self) -> bool:
        """Whether it has encoded samples instead of columns."""
        return len(self.columns) == 1 and next(iter(self.columns)) not in self.inputs

    @property
    def size_bytes(self) -> int:
        """Approximate size in memory."""
        return sum(map(_size_of, self.columns.values())) + sum(map(_size_of, self.outputs.values()))


def _size_of(column: Tensor | Ragged | list[bytes]) -> int:
    if isinstance(column, list):
        return sum(map(len, column)) + 64 * len(column)
    if isinstance(column, Ragged):
        return int(column.flat_values.nbytes + column.row_splits.nbytes)
    return int(column.nbytes)


_ITEM_MASK = (1 << 64) - 1


def records_of(request: AnsweredRequest, *, time_ms: int, item_column: str | None = None) -> list[bytes]:
    """Returns the records of a request, in the order of its examples.

    `item_column` has the item of an example; if it is None or not in the request, the index of the example is used.
    """
    samples, items = _encoded(request, item_column) if request.is_encoded else _columns(request, item_column)
    answers = _answers(request)
    return [
        impression_record(request.request_id, item & _ITEM_MASK, time_ms=time_ms, sample=sample + answer)
        for item, sample, answer in zip(items, samples, answers, strict=True)
    ]


def _columns(request: AnsweredRequest, item_column: str | None) -> tuple[list[bytes], list[int]]:
    count = request.num_examples
    features = ExampleFeatures(count)
    for name, column in request.columns.items():
        if isinstance(column, list):
            features.add_texts(name, column)
        else:
            features.add_numbers(name, column, is_ids=request.inputs[name].kind == "ids")
    item_ids = None if item_column is None else request.columns.get(item_column)
    items = list(range(count)) if item_ids is None or isinstance(item_ids, list) else _first_ids(item_ids)
    return features.rows(), items * count if len(items) == 1 else items


def _encoded(request: AnsweredRequest, item_column: str | None) -> tuple[list[bytes], list[int]]:
    ((form, samples),) = request.columns.items()
    examples = requested_examples(form, samples if isinstance(samples, list) else [])
    items = list(range(len(examples)))
    if item_column is not None:
        items = [first_id_of(example, item_column) for example in examples]
    return [example.SerializeToString() for example in examples], items


def _first_ids(column: Tensor | Ragged) -> list[int]:
    if not isinstance(column, Ragged):
        return [int(first) for first in column.reshape(column.shape[0], -1)[:, 0].tolist()]
    values = column.flat_values
    starts, lengths = column.row_splits[:-1], column.lengths()
    if not len(values):
        return [0] * column.num_rows
    firsts = values[starts.clamp(max=len(values) - 1)]
    return [int(first) for first in torch.where(lengths > 0, firsts, torch.zeros_like(firsts)).tolist()]


def _answers(request: AnsweredRequest) -> list[bytes]:
    """Returns the encoded answer of each example; an output that is not per example is repeated in each."""
    count, version = request.num_examples, request.version
    metadata = json.dumps(
        {
            "request": request.request_id.decode("latin-1"),
            "model": request.model,
            "signature": request.signature,
            "export": int(version.export),
            "dense": int(version.dense),
            "sparse": {str(part): int(number) for part, number in version.sparse.items()},
            "examples": count,
        },
        separators=(",", ":"),
    )
    head = metadata.removesuffix("}").encode()
    features = ExampleFeatures(count)
    features.add_texts(SERVED, [b'%b,"example":%d}' % (head, number) for number in range(count)])
    for name, values in request.outputs.items():
        by_example = values.ndim > 0 and values.shape[0] == count
        features.add_numbers(f"{SERVED}/{name}", values if by_example else values.reshape(1, -1))
    return features.rows()


SERVED = "__SERVED__"
"""Feature of a logged example with metadata of its answer; with the suffix ``/NAME``, the output of that name."""


def requested_examples(form: str, samples: Sequence[bytes]) -> list[Example]:
    """Returns the requested examples, without labels and without features of an earlier answer."""
    try:
        if form == "example_batch":
            batches = [ExampleBatch.FromString(data) for data in samples]
            examples = [example for batch in batches for example in examples_of_batch(batch, FeaturePruning.AS_IS)]
        elif form == "instances":
            examples = [example_of_instance(Instance.FromString(data)) for data in samples]
        else:
            examples = [with_typed_fields(Example.FromString(data)) for data in samples]
    except DecodeError as error:
        raise DataLossError(f"{form}: the bytes are no such message") from error
    for example in examples:
        example.ClearField("label")
        kept = [feature for feature in example.named_feature if not feature.name.startswith((SERVED, LABEL_FEATURE))]
        if len(kept) < len(example.named_feature):
            features = [feature.SerializeToString() for feature in kept]
            example.ClearField("named_feature")
            for feature in features:
                example.named_feature.add().MergeFromString(feature)
    return examples


def first_id_of(example: Example, name: str) -> int:
    """Returns the first id of a feature, or its first integer; 0 if there is none."""
    for named in example.named_feature:
        if named.name != name:
            continue
        kind = named.feature.WhichOneof("type")
        if kind in {"fid_v2_list", "fid_v1_list", "int64_list"}:
            values = getattr(named.feature, kind).value
            first = values[0] if values else 0
            return int(v1_to_v2(first)) if kind == "fid_v1_list" and values else int(first)
    return 0


_NAMED_FEATURE, _NAME, _FEATURE, _VALUES = b"\x0a", b"\x0a", b"\x12", b"\x0a"
"""Tags of Example, NamedFeature and every list of values; each is a length-delimited field."""
_IDS, _FLOATS, _DOUBLES, _INTS, _TEXTS = b"\x12", b"\x1a", b"\x22", b"\x2a", b"\x32"
"""Tags of the kinds of a Feature: fid_v2_list, float_list, double_list, int64_list, bytes_list."""


class ExampleFeatures:
    """The features of some examples, added column by column. Not thread-safe.

    A column has a row for each example, or one for all; the shape of a row is not kept.
    """

    def __init__(self, num_examples: int) -> None:
        self._count = num_examples
        self._blocks: list[NDArray[np.uint8]] = []
        self._loose: list[list[bytes]] = []

    def add_numbers(self, name: str, column: Tensor | Ragged, *, is_ids: bool = False) -> None:
        """Adds a column of ids, real numbers or integers."""
        if isinstance(column, Ragged):
            values, splits = column.flat_values, column.row_splits.tolist()
        else:
            values, splits = column.reshape(-1), None
        kind, array = _packed_values(values.detach(), is_ids=is_ids)
        num_rows = column.num_rows if isinstance(column, Ragged) else column.shape[0]
        heads = _Heads(name, kind)
        if splits is None and kind != _INTS:
            rows = array.view(np.uint8).reshape(num_rows, -1)
            self._blocks += (np.frombuffer(heads[rows.shape[1]], np.uint8)[None], rows)
            return
        if splits is None:
            width = len(array) // num_rows if num_rows else 0
            splits = [width * row for row in range(num_rows + 1)]
        if kind == _INTS:
            numbers = array.tolist()
            self._add_loose(heads, [b"".join(map(_varint, numbers[begin:end])) for begin, end in pairwise(splits)])
        else:
            data, size = array.tobytes(), array.itemsize
            self._add_loose(heads, [data[begin * size : end * size] for begin, end in pairwise(splits)])

    def add_texts(self, name: str, texts: list[bytes]) -> None:
        """Adds a column of texts."""
        self._add_loose(_Heads(name, _TEXTS), texts)

    def rows(self) -> list[bytes]:
        """Returns the features of each example, as bytes of an Example."""
        columns = list(self._loose)
        if self._blocks:
            width = sum(block.shape[1] for block in self._blocks)
            joined = np.empty((self._count, width), np.uint8)
            at = 0
            for block in self._blocks:
                joined[:, at : at + block.shape[1]] = block
                at += block.shape[1]
            data = joined.tobytes()
            columns.insert(0, [data[begin : begin + width] for begin in range(0, self._count * width, width)])
        return [b"".join(parts) for parts in zip(*columns, strict=True)] if columns else [b""] * self._count

    def _add_loose(self, heads: _Heads, values: list[bytes]) -> None:
        rows = [heads[len(value)] + value for value in values]
        self._loose.append(rows * self._count if len(rows) == 1 else rows)


class _Heads(dict[int, bytes]):
    """Size of a value -> the bytes that precede it in a feature."""

    def __init__(self, name: str, kind: bytes) -> None:
        super().__init__()
        text = name.encode("utf-8", "surrogatepass")
        self._name = _NAME + _varint(len(text)) + text
        self._kind = kind

    def __missing__(self, size: int) -> bytes:
        head = _VALUES + _varint(size)
        for before in (self._kind, self._name + _FEATURE, _NAMED_FEATURE):  # from the innermost message outwards
            head = before + _varint(len(head) + size) + head
        self[size] = head
        return head


def _packed_values(values: Tensor, *, is_ids: bool) -> tuple[bytes, NDArray[np.generic]]:
    """Returns the kind of feature, and an array whose bytes encode its values."""
    if is_ids:
        return _IDS, values.numpy().astype("<i8", copy=False)
    if values.dtype is torch.float64:
        return _DOUBLES, values.numpy().astype("<f8", copy=False)
    if values.is_floating_point():
        return _FLOATS, values.float().numpy().astype("<f4", copy=False)
    return _INTS, values.long().numpy()


def _varint(value: int) -> bytes:
    """Encodes a number as a protobuf varint; a negative one as its 64-bit two's complement."""
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
