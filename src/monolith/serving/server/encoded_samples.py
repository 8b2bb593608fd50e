"""Counts the examples of encoded samples without decoding them."""

from __future__ import annotations

from monolith import _core
from monolith.errors import InvalidArgumentError

__all__ = ["num_examples"]


def num_examples(name: str, samples: list[bytes], limit: int) -> int:
    """Returns the number of examples of an input of that name; for an ``ExampleBatch`` at most `limit` + 1.

    Raises:
        InvalidArgumentError: there is no sample, there are several batches, or the bytes are not an ``ExampleBatch``.
    """
    if name != "example_batch":
        if not samples:
            raise InvalidArgumentError(f"input {name!r}: must have at least one sample, got none")
        return len(samples)
    if len(samples) != 1:
        raise InvalidArgumentError(f"input {name!r}: must be one ExampleBatch, got {len(samples)}")
    return min(_batch_size(samples[0]), limit + 1)


def _batch_size(data: bytes) -> int:
    size = _core.example_batch_size(data)
    if size is None:
        raise InvalidArgumentError("input 'example_batch': the bytes are no ExampleBatch: cut off or foreign")
    return size
