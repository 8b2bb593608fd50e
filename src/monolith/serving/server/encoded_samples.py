"""How many examples encoded samples have, seen without decoding them."""

from __future__ import annotations

from monolith.errors import InvalidArgumentError

__all__ = ["num_examples"]

_BATCH_SIZE_FIELD = 3
"""Of ``ExampleBatch``."""
_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES = 10


def num_examples(name: str, samples: list[bytes], limit: int) -> int:
    """How many examples an input of that name has; at most a little above the limit for what is far too large.

    Raises:
        InvalidArgumentError: none, several batches, or bytes that are cut off.
    """
    if name != "example_batch":
        if not samples:
            raise InvalidArgumentError(f"input {name!r}: must have at least one sample, got none")
        return len(samples)
    if len(samples) != 1:
        raise InvalidArgumentError(f"input {name!r}: must be one ExampleBatch, got {len(samples)}")
    return min(_batch_size(samples[0]), limit + 1)


def _batch_size(data: bytes) -> int:
    at, size = 0, 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            if tag >> 3 == _BATCH_SIZE_FIELD:
                size = value
        elif kind == _SIZED:
            length, at = _varint(data, at)
            at += length
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise _broken()
    if at != len(data):
        raise _broken()
    return size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(_VARINT_BYTES):
        if at >= len(data):
            raise _broken()
        byte = data[at]
        value |= (byte & 0x7F) << (7 * shift)
        at += 1
        if byte < 0x80:
            return value, at
    raise _broken()


def _broken() -> InvalidArgumentError:
    return InvalidArgumentError("input 'example_batch': the bytes are no ExampleBatch: cut off or foreign")
