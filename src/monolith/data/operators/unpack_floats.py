"""Packed vectors of a column as a dense column: 8-bit codes between two bounds, as instance features carry embeddings.

    bytes of a vector of more than 4 elements   "UE_QTZ" | min: half | max: half | one uint8 code for each element
    bytes of a vector of up to 4 elements       "UE_QTZ" | one half for each element

An element is min + code * (max - min) / 255. Halves are IEEE binary16, little-endian.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np
import torch

from monolith.config import config, require_at_least
from monolith.data.operators.column_access import texts_of
from monolith.data.operators.conditions import Operator
from monolith.data.rows import with_columns
from monolith.errors import DataLossError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from monolith.data.batch import Batch

PACKED_TAG = b"UE_QTZ"
"""Prefix of packed bytes."""

_MAX_PLAIN = 4
"""Vectors up to this length are not worth their bounds."""


def unpack_floats(texts: Sequence[bytes], width: int) -> Tensor:
    """Returns the vectors of a column of packed bytes as float32 [rows, width]; an empty string is a vector of zeros.

    >>> unpack_floats([PACKED_TAG + np.array([0.0, 0.5, 1.0], "<f2").tobytes()], 3)
    tensor([[0.0000, 0.5000, 1.0000]])
    """
    if width < 1:
        raise ValueError(f"width must be >= 1, got {width}")
    head = len(PACKED_TAG)
    body = 2 * width if width <= _MAX_PLAIN else 4 + width
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    there = np.flatnonzero(lengths)
    wrong = there[lengths[there] != head + body]
    if len(wrong):
        row = int(wrong[0])
        expected = f"{head + body} bytes for {width} elements"
        raise DataLossError(f"row {row}: packed floats must have {expected}, got {len(texts[row])}")
    vectors = np.zeros((len(texts), width), dtype=np.float32)
    packed = np.frombuffer(b"".join(texts), dtype=np.uint8).reshape(len(there), head + body)
    untagged = there[(packed[:, :head] != np.frombuffer(PACKED_TAG, dtype=np.uint8)).any(axis=1)]
    if len(untagged):
        row = int(untagged[0])
        raise DataLossError(f"row {row}: packed floats must begin with {PACKED_TAG!r}, got {texts[row][:head]!r}")
    halves = 4 if width > _MAX_PLAIN else body
    plain = np.ascontiguousarray(packed[:, head : head + halves]).view("<f2").astype(np.float32)
    if width <= _MAX_PLAIN:
        vectors[there] = plain
    else:
        codes = packed[:, head + 4 :].astype(np.float32)
        vectors[there] = plain[:, :1] + codes * (plain[:, 1:] - plain[:, :1]) / np.float32(255)
    return torch.from_numpy(vectors)


@config
class UnpackFloats(Operator):
    """Makes float32 [B, width] of a column of ``UE_QTZ`` bytes, as `FirstBytes` reads it; empty ones become zeros."""

    column: str = field(kw_only=False)
    width: int
    output: str = ""
    """Column of the vectors; empty: in place."""

    def __post_init__(self) -> None:
        require_at_least(self, 1, "width")

    def __call__(self, batch: Batch) -> Batch:
        """Returns the batch with the vectors.

        Raises:
            DataLossError: bytes that are not a vector of this width; names the row.
        """
        vectors = unpack_floats(texts_of(batch, self.column, self), self.width)
        return with_columns(batch, {self.output or self.column: vectors})
