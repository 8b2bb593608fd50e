"""Numbered examples: their encoding from joined events, and their records in the state and in an output file.

The sort id of a record is the number of the example (8 bytes, big-endian, so that ids sort as numbers do), the earliest
time in milliseconds at which it could be known (8 bytes, big-endian), and the request. Numbers of a partition begin at
1, without gaps.

An example is the sample of the impression with labels and actions. Nothing is parsed: bytes that follow a serialized
message are merged into it by every reader of protocol buffers. Fields of the line id that are set here replace those of
the sample; labels are appended to those that it has.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from monolith import _core
from monolith.data.records import Framing, SampleFormat
from monolith.errors import DataLossError
from monolith.online.joiner.events import item_of, request_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from monolith.online.joiner.machine import JoinedExample
    from monolith.online.joiner.rules import JoinRuleConfig

_LENGTH = struct.Struct("<Q")
_ID = struct.Struct(">QQ")
_LARGEST = (1 << 31) - 1


class NumberedExample(NamedTuple):
    """An example of a joiner's output."""

    number: int
    known_ms: int
    request: bytes
    example: bytes


def pack_examples(examples: Iterable[NumberedExample | tuple[int, int, bytes, bytes]]) -> bytes:
    """Encodes examples as records; each may be a plain tuple of the fields of a `NumberedExample`."""
    parts: list[bytes] = []
    length, head, id_bytes = _LENGTH.pack, _ID.pack, _ID.size
    for number, known_ms, request, example in examples:
        parts += (length(id_bytes + len(request)), head(number, known_ms), request, length(len(example)), example)
    return b"".join(parts)


def split_examples(data: bytes) -> Iterator[NumberedExample]:
    """Decodes the output of `pack_examples`."""
    examples, end = whole_examples(data)
    if end != len(data):
        raise DataLossError(f"numbered examples end at byte {end} of {len(data)} inside a record")
    return iter(examples)


def whole_examples(data: bytes) -> tuple[list[NumberedExample], int]:
    """Returns the complete examples, and the offset at which the last one ends."""
    spans, end, _, problem, reason, _ = _core.scan_frames(
        np.frombuffer(data, np.uint8),
        0,
        framing=Framing.SORT_ID.value,
        at_end=False,
        max_record_bytes=_LARGEST,
        max_records=1 << 62,
    )
    if problem:
        raise DataLossError(f"byte {end}: not the output of a joiner: {reason}")
    examples: list[NumberedExample] = []
    at = 0
    for begin, length in spans.reshape(-1, 2).tolist():
        sort_id = data[at + _LENGTH.size : begin - _LENGTH.size]
        if len(sort_id) < _ID.size:
            raise DataLossError(f"byte {at}: not the output of a joiner: a sort id of {len(sort_id)} bytes")
        number, known_ms = _ID.unpack_from(sort_id)
        examples.append(NumberedExample(number, known_ms, sort_id[_ID.size :], data[begin : begin + length]))
        at = begin + length
    return examples, at


_FIELDS = {SampleFormat.EXAMPLE: (100, 101), SampleFormat.INSTANCE: (5, 3)}
"""Field numbers of line id and label."""
_REQ_TIME, _ITEM_ID, _ACTIONS, _PRE_ACTIONS, _SAMPLE_RATE = 3, 4, 6, 23, 27
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MASK = (1 << 64) - 1
_FLOAT = struct.Struct("<f")
_SMALL = [bytes([value]) for value in range(128)]


class ExampleWriter:
    """Encoder of examples, whose labels the rules define, from samples of one format. Thread-safe."""

    def __init__(self, rules: JoinRuleConfig, sample: SampleFormat | str = SampleFormat.EXAMPLE) -> None:
        self.rules = rules
        self.sample = SampleFormat.of(sample)
        if self.sample not in _FIELDS:
            names = " or ".join(sample_format.name for sample_format in _FIELDS)
            raise ValueError(f"the joiner completes samples of format {names}, got {self.sample.name}")
        line_id, self._label = _FIELDS[self.sample]
        self._line_id_tag = _tag(line_id, _BYTES)
        self._rate = b""
        if rules.negative_rate < 1:
            self._rate = _tag(_SAMPLE_RATE, _FIXED32) + _FLOAT.pack(rules.negative_rate)
        self._nothing = rules.negative_action
        self._tasks = tuple(map(frozenset, rules.tasks))
        self._negative_label = rules.negative_label
        self._tails: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[bytes, bytes]] = {}

    def example(self, joined: JoinedExample) -> bytes:
        """Returns the encoded example."""
        ((_, _, _, example),) = self.numbered([joined], 0)
        return example

    def numbered(self, outgoing: Iterable[JoinedExample], number: int) -> Iterator[tuple[int, int, bytes, bytes]]:
        """Yields the fields of a `NumberedExample` for each example, numbered from `number` on."""
        tails, line_id_tag = self._tails, self._line_id_tag
        last_second, shown = -1, b""
        for key, shown_ms, known_ms, sample, actions, pre_actions in outgoing:
            tail = tails.get((actions, pre_actions))
            if tail is None:
                tail = self._tail(actions, pre_actions)
                if len(tails) < 1 << 12:  # usually few distinct ones
                    tails[actions, pre_actions] = tail
            happened, labels = tail
            second = shown_ms // 1000
            if second != last_second:  # usually many share a second
                last_second, shown = second, _REQ_TIME_TAG + _varint(second) + _ITEM_ID_TAG
            line_id = shown + item_of(key) + happened
            yield number, known_ms, request_of(key), sample + line_id_tag + _varint(len(line_id)) + line_id + labels
            number += 1

    def labels(self, actions: tuple[int, ...]) -> list[float]:
        """Returns one label per task."""
        happened = {action for action in actions if action != self._nothing}
        if not self._tasks:
            return [1.0 if happened else self._negative_label]
        return [1.0 if happened & positives else self._negative_label for positives in self._tasks]

    def _tail(self, actions: tuple[int, ...], pre_actions: tuple[int, ...]) -> tuple[bytes, bytes]:
        happened = _packed(_ACTIONS, actions) + _packed(_PRE_ACTIONS, pre_actions) + self._rate
        floats = b"".join(map(_FLOAT.pack, self.labels(actions)))
        return happened, _tag(self._label, _BYTES) + _varint(len(floats)) + floats


def _varint(value: int) -> bytes:
    """Encodes a number as a protobuf varint; a negative one as its 64-bit two's complement."""
    if 0 <= value < len(_SMALL):
        return _SMALL[value]
    value &= _MASK
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _tag(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _packed(number: int, values: tuple[int, ...]) -> bytes:
    if not values:
        return b""
    joined = b"".join(map(_varint, values))
    return _tag(number, _BYTES) + _varint(len(joined)) + joined


_REQ_TIME_TAG = _tag(_REQ_TIME, _VARINT)
_ITEM_ID_TAG = _tag(_ITEM_ID, _FIXED64)
