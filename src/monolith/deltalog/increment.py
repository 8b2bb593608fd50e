"""One record of a delta log as bytes. Byte grammar: docs/formats/delta_log.md.

A record describes itself: its head tells its length and has a checksum of its own, so that a reader of a stream of
bytes knows a record that is still being written from one that was changed. No length is believed before it was compared
with the bytes at hand.
"""

from __future__ import annotations

import enum
import json
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from monolith import _core
from monolith.errors import DataLossError, InvalidArgumentError
from monolith.tables.history import Mark
from monolith.tables.snapshot.clocks import stamps_from_json, stamps_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.tables.batch import BatchStamp

FORMAT_VERSION = 1
"""Version of a record.

To change it: raise the number, describe the new form in docs/formats/delta_log.md under its version, keep reading the
old one, and keep its vectors in tests/deltalog/vectors.
"""

MAGIC = 0x494C444D
"""The bytes ``MDLI``."""
HEAD = struct.Struct("<IHBBQQQQQQQQQQQQIIQII")
TAIL = struct.Struct("<II")
MAX_RECORD_BYTES = 1 << 30
"""Longer records are neither written nor read; whoever has more to say writes several."""
_NUMBERS_END = 1 << 64


class IncrementKind(enum.IntEnum):
    """What a record holds. Persisted: the values never change."""

    OPENING = 1
    """The first record of a generation: its payload is the text of the schema."""
    ROWS = 2
    """Row blocks end to end: serving rows and tombstones."""
    DENSE = 3
    """The dense weights, as a safetensors file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Increment:
    """What a trainer tells its followers at once.

    Behind increment n a follower has no row older than the trainer's at `mark`. Rows may be newer: replaying is
    harmless.
    """

    part: str
    """Which part of the log it belongs to; see `monolith.deltalog.parts`."""
    kind: IncrementKind
    generation: int
    """Life of the part's writer; grows by one with each."""
    writer: int
    """Drawn at random by the writer: of two that open a generation at once, one is listened to."""
    number: int
    """Its place in the part, without gaps, also across generations."""
    mark: Mark
    """Every change up to here is in this increment or in one before it."""
    step: int = 0
    """Steps trained."""
    schema_digest: int = 0
    """Of the serving rows of the store; of dense weights, 0."""
    oldest_event_ms: int = 0
    """Oldest event among the examples since the last increment, Unix milliseconds; 0: none, or not known."""
    newest_event_ms: int = 0
    examples: int = 0
    """Trained since the last increment."""
    published_ms: int = 0
    """When it was written, by the writer's clock, Unix milliseconds."""
    stamps: Mapping[int, BatchStamp] = field(default_factory=dict)
    """Worker -> its last batch that is contained, as far as the writer knows it."""
    needs: Mapping[str, int] = field(default_factory=dict)
    """Part -> number that a follower must have applied before this."""
    base: str | None = None
    """Of an opening: what is behind it begins with this base, and not with what was before it."""
    follows: int | None = None
    """Of an opening: the generation that it goes on from, 0: none; None: the order of the log tells it."""
    payload: bytes = b""

    def encode(self) -> bytes:
        """The record."""
        details = _details(self)
        details += b" " * (-len(details) % 8)
        padding = b"\0" * (-len(self.payload) % 8)
        size = HEAD.size + len(details) + len(self.payload) + len(padding) + TAIL.size
        if size > MAX_RECORD_BYTES:
            raise InvalidArgumentError(
                f"increment {self.number} of part {self.part!r}: at most {MAX_RECORD_BYTES} bytes expected, got {size};"
                " write several"
            )
        values: tuple[int, ...] = (self.generation, self.writer, self.number, *self.mark, self.step, self.schema_digest)
        values += (self.oldest_event_ms, self.newest_event_ms, self.examples, self.published_ms)
        if not all(0 <= value < _NUMBERS_END for value in values):
            raise InvalidArgumentError(f"increment of part {self.part!r}: numbers must be 64 bits >= 0, got {values}")
        head = HEAD.pack(MAGIC, FORMAT_VERSION, self.kind, 0, *values, len(details), 0, len(self.payload), 0, 0)
        head = head[: -TAIL.size] + TAIL.pack(_core.crc32c(head[: -TAIL.size]), 0)
        pieces = (head, details, self.payload, padding)
        checksum = 0
        for piece in pieces:
            checksum = _crc(piece, checksum)
        return b"".join((*pieces, TAIL.pack(checksum, 0)))


class Head(NamedTuple):
    """What the first bytes of a record say; their checksum was right."""

    kind: IncrementKind
    generation: int
    writer: int
    number: int
    published_ms: int
    details_bytes: int
    payload_bytes: int

    @property
    def record_bytes(self) -> int:
        """Length of the whole record."""
        return HEAD.size + self.details_bytes + self.payload_bytes + -self.payload_bytes % 8 + TAIL.size


def read_head(data: bytes | memoryview, *, origin: str) -> Head:
    """The head at the beginning of some bytes.

    Raises:
        DataLossError: there is none; `origin` says where it was looked for.
    """
    return _parse_head(_head_fields(data, origin), origin)


def check_sum(data: bytes, head: Head, *, origin: str) -> None:
    """Refuses bytes that are not the record of a head.

    Raises:
        DataLossError: says why.
    """
    if head.record_bytes != len(data):
        raise DataLossError(f"{origin}: a record of {head.record_bytes} bytes expected, got {len(data)}")
    end = len(data) - TAIL.size
    if TAIL.unpack_from(data, end) != (_crc(memoryview(data)[:end]), 0):
        raise DataLossError(f"{origin}: checksum of the record does not match (it was changed)")


def decode(data: bytes, *, origin: str) -> Increment:
    """The increment that `Increment.encode` made of it.

    Raises:
        DataLossError: the bytes are not exactly one record; says why.
    """
    fields = _head_fields(data, origin)
    head = _parse_head(fields, origin)
    check_sum(data, head, origin=origin)
    begin = HEAD.size + head.details_bytes
    details = _read_details(data[HEAD.size : begin], origin)
    generation, writer, number, *mark, step, digest, oldest, newest, examples, published = fields[4:16]
    return Increment(
        kind=head.kind,
        generation=generation,
        writer=writer,
        number=number,
        mark=Mark(*mark),
        step=step,
        schema_digest=digest,
        oldest_event_ms=oldest,
        newest_event_ms=newest,
        examples=examples,
        published_ms=published,
        payload=data[begin : begin + head.payload_bytes],
        **details,
    )


def _head_fields(data: bytes | memoryview, origin: str) -> tuple[int, ...]:
    if len(data) < HEAD.size:
        raise DataLossError(f"{origin}: a head of {HEAD.size} bytes expected, got {len(data)}")
    fields: tuple[int, ...] = HEAD.unpack_from(data)
    if fields[0] != MAGIC:
        raise DataLossError(f"{origin}: no record begins here (magic {MAGIC:#x} expected, got {fields[0]:#x})")
    if fields[1] != FORMAT_VERSION:
        raise DataLossError(f"{origin}: record of version {fields[1]}, this build reads version {FORMAT_VERSION}")
    if fields[-2:] != (_core.crc32c(bytes(data[: HEAD.size - TAIL.size])), 0):
        raise DataLossError(f"{origin}: checksum of the head does not match (it was changed)")
    return fields


def _parse_head(fields: tuple[int, ...], origin: str) -> Head:
    _, _, kind, zero, generation, writer, number = fields[:7]
    details, also_zero, payload = fields[16:19]
    if zero or also_zero or details % 8 or kind not in IncrementKind.__members__.values():
        raise DataLossError(f"{origin}: not the head of a record (kind {kind}, details of {details} bytes)")
    if details + payload > MAX_RECORD_BYTES:
        raise DataLossError(f"{origin}: at most {MAX_RECORD_BYTES} bytes expected, got {details + payload}")
    return Head(IncrementKind(kind), generation, writer, number, fields[15], details, payload)


def _details(increment: Increment) -> bytes:
    document: dict[str, Any] = {
        "part": increment.part,
        "stamps": stamps_json(increment.stamps),
        "needs": dict(increment.needs),
        "base": increment.base,
    }
    if increment.follows is not None:
        document["follows"] = increment.follows
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _read_details(text: bytes, origin: str) -> dict[str, Any]:
    """Part, stamps, needs, base and what an opening follows: what can be of any length, or need not be there."""
    try:
        document = json.loads(text)
        found = {
            "part": document["part"],
            "stamps": stamps_from_json(document["stamps"]),
            "needs": {str(part): int(number) for part, number in document["needs"].items()},
            "base": document["base"],
            "follows": document.get("follows"),
        }
        if not isinstance(found["part"], str) or not isinstance(found["base"], str | None):
            raise TypeError("part and base must be texts")  # noqa: TRY301 - one place tells what is wrong
        if not isinstance(found["follows"], int | None):
            raise TypeError("follows must be a generation")  # noqa: TRY301 - the same
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DataLossError(f"{origin}: not the details of a record: {error!r}") from error
    return found


def _crc(data: bytes | memoryview, before: int = 0) -> int:
    return _core.crc32c_extend(before, np.frombuffer(data, np.uint8)) if len(data) else before
