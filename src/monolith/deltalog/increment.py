"""One record of a delta log as bytes, and the names of the parts of a log. Byte grammar: docs/formats/delta_log.md.

A log has one part per owner of rows, and one for the dense weights. A record is self-describing: its head holds its
length and a checksum of the head, so that a reader of a byte stream can distinguish a record that is still being
written from a corrupt one. Every length is checked against the available bytes before use.
"""

from __future__ import annotations

import enum
import json
import re
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from monolith import _core
from monolith.errors import DataLossError, FailedPreconditionError, InvalidArgumentError
from monolith.files import is_name
from monolith.tables import ALL_BUCKETS, ChangePosition, bucket_bounds, stamps_from_json, stamps_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.tables import BatchStamp

DENSE_PART = "dense"
"""The part that holds dense weights, written by one process of a run."""

_ROWS = re.compile(r"(.+)\.(\d{4})-(\d{4})")
_SERVER = re.compile(r"ps-\d+-of-\d+")


def rows_part(store: str = "model", buckets: range = ALL_BUCKETS) -> str:
    """Returns the name of the part for buckets of a store.

    >>> rows_part("tower.embeddings", range(0, 512))
    'tower.embeddings.0000-0512'
    """
    begin, end = bucket_bounds(buckets)
    name = f"{store}.{begin:04d}-{end:04d}"
    require_part(name)
    return name


def recovery_part(index: int, num_ps: int, buckets: range) -> str:
    """Returns the name of the part that is the recovery record of a parameter server.

    >>> recovery_part(0, 2, range(0, 512))
    'ps-0-of-2.0000-0512'
    """
    return rows_part(f"ps-{index}-of-{num_ps}", buckets)


def require_published(place: str, part: str) -> None:
    """Rejects the recovery record of a parameter server, whose rows and weights no follower can apply.

    Raises:
        FailedPreconditionError: the part is one.
    """
    rows = store_of(part)
    if rows is not None and _SERVER.fullmatch(rows[0]):
        raise FailedPreconditionError(
            f"delta log '{place}', part {part!r}: a log that a run publishes is expected, got the recovery record of a"
            " parameter server, which only servers can apply; name the log of `--delta_log`"
        )


def store_of(part: str) -> tuple[str, range] | None:
    """Returns the store and the buckets of a part; None if the part does not hold rows.

    >>> store_of("model.0000-1024"), store_of("dense")
    (('model', range(0, 1024)), None)
    """
    match = _ROWS.fullmatch(part)
    if match is None or not int(match[2]) < int(match[3]) <= len(ALL_BUCKETS):
        return None
    return match[1], range(int(match[2]), int(match[3]))


def require_part(name: str) -> None:
    """Rejects an invalid part name.

    Raises:
        InvalidArgumentError: the name is invalid; the message describes valid names.
    """
    if not is_name(name) or (name != DENSE_PART and store_of(name) is None):
        raise InvalidArgumentError(
            f"delta log: a part is called {DENSE_PART!r}, or like 'model.0000-1024' by store and buckets, got {name!r}"
        )


FORMAT_VERSION = 1
"""Version of a record.

To change it: raise the number, describe the new layout in docs/formats/delta_log.md under its version, keep reading the
old one, and keep its vectors in tests/deltalog/vectors.
"""

MAGIC = 0x494C444D
"""The bytes ``MDLI``."""
HEAD = struct.Struct("<IHBBQQQQQQQQQQQQIIQII")
TAIL = struct.Struct("<II")
MAX_RECORD_BYTES = 1 << 30
"""Longer records are neither written nor read; a writer with more data writes several."""
_NUMBERS_END = 1 << 64


class IncrementKind(enum.IntEnum):
    """What a record holds. Persisted: the values never change."""

    OPENING = 1
    """The first record of a generation: its payload is the text of the schema."""
    ROWS = 2
    """Concatenated row blocks: serving rows and tombstones."""
    DENSE = 3
    """The dense weights, as a safetensors file."""
    STATE = 4
    """A state of the writer that commits the rows and weights that it names. Only in the recovery record of a parameter
    server, whose rows and weights have formats of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Increment:
    """A batch of changes that a trainer publishes to its followers.

    After applying increment n, a follower has no row older than the trainer's at `mark`. Rows may be newer: applying an
    increment again is harmless.
    """

    part: str
    """Part of the log that it belongs to; see `monolith.deltalog.increment`."""
    kind: IncrementKind
    generation: int
    """Incarnation of the part's writer; incremented by each new one."""
    writer: int
    """Random id of the writer, which decides between two that open the same generation concurrently."""
    number: int
    """Sequence number in the part, without gaps, also across generations."""
    mark: ChangePosition
    """Every change up to here is in this increment or in one before it."""
    step: int = 0
    """Number of steps trained."""
    schema_digest: int = 0
    """Digest of the schema of the store's serving rows; 0 for dense weights."""
    oldest_event_ms: int = 0
    """Oldest event among the examples since the last increment, Unix milliseconds; 0: none, or unknown."""
    newest_event_ms: int = 0
    examples: int = 0
    """Number of examples trained since the last increment."""
    published_ms: int = 0
    """When it was written, by the writer's clock, Unix milliseconds."""
    stamps: Mapping[int, BatchStamp] = field(default_factory=dict)
    """Worker -> its last batch that the increment contains, as far as the writer has it."""
    needs: Mapping[str, int] = field(default_factory=dict)
    """Part -> number that a follower must have applied before this."""
    base: str | None = None
    """Opening only: the records after it start from this base instead of continuing the records before it."""
    follows: int | None = None
    """Opening only: the generation that it continues, 0: none; None: given by the order of the log."""
    payload: bytes = b""

    def encode(self) -> bytes:
        """Encodes the record."""
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


class RecordHeader(NamedTuple):
    """The head of a record, with a verified checksum."""

    kind: IncrementKind
    generation: int
    writer: int
    number: int
    published_ms: int
    details_bytes: int
    payload_bytes: int

    @property
    def record_bytes(self) -> int:
        """Length of the entire record, in bytes."""
        return HEAD.size + self.details_bytes + self.payload_bytes + -self.payload_bytes % 8 + TAIL.size


def read_head(data: bytes | memoryview, *, origin: str) -> RecordHeader:
    """Parses the head at the beginning of some bytes.

    Raises:
        DataLossError: the bytes do not start with a head; `origin` names their source.
    """
    return _parse_head(_head_fields(data, origin), origin)


def check_sum(data: bytes, head: RecordHeader, *, origin: str) -> None:
    """Rejects bytes that are not the record of a head.

    Raises:
        DataLossError: the length or the checksum does not match.
    """
    if head.record_bytes != len(data):
        raise DataLossError(f"{origin}: a record of {head.record_bytes} bytes expected, got {len(data)}")
    end = len(data) - TAIL.size
    if TAIL.unpack_from(data, end) != (_crc(memoryview(data)[:end]), 0):
        raise DataLossError(f"{origin}: checksum of the record does not match (it was changed)")


def decode(data: bytes, *, origin: str) -> Increment:
    """Decodes the output of `Increment.encode`.

    Raises:
        DataLossError: the bytes are not exactly one record; the message gives the reason.
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
        mark=ChangePosition(*mark),
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


def _parse_head(fields: tuple[int, ...], origin: str) -> RecordHeader:
    _, _, kind, zero, generation, writer, number = fields[:7]
    details, also_zero, payload = fields[16:19]
    if zero or also_zero or details % 8 or kind not in IncrementKind.__members__.values():
        raise DataLossError(f"{origin}: not the head of a record (kind {kind}, details of {details} bytes)")
    if details + payload > MAX_RECORD_BYTES:
        raise DataLossError(f"{origin}: at most {MAX_RECORD_BYTES} bytes expected, got {details + payload}")
    return RecordHeader(IncrementKind(kind), generation, writer, number, fields[15], details, payload)


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
    """Parses the fields of variable length and the optional ones: part, stamps, needs, base and `follows`."""
    try:
        document = json.loads(text)
        details = {
            "part": document["part"],
            "stamps": stamps_from_json(document["stamps"]),
            "needs": {str(part): int(number) for part, number in document["needs"].items()},
            "base": document["base"],
            "follows": document.get("follows"),
        }
        if not isinstance(details["part"], str) or not isinstance(details["base"], str | None):
            raise TypeError("part and base must be texts")  # noqa: TRY301 - one handler reports every fault
        if not isinstance(details["follows"], int | None):
            raise TypeError("follows must be a generation")  # noqa: TRY301 - the same
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DataLossError(f"{origin}: not the details of a record: {error!r}") from error
    return details


def _crc(data: bytes | memoryview, before: int = 0) -> int:
    return _core.crc32c_extend(before, np.frombuffer(data, np.uint8)) if len(data) else before
