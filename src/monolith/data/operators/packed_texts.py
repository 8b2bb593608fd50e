"""Concatenated byte strings in one array, so that all of them are tested together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["PackedTexts"]

_PRIME = np.uint64(0x100000001B3)
_OFFSET = np.uint64(0xCBF29CE484222325)


class PackedTexts:
    """The bytes of many texts, where each starts, and how long it is."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self.lengths: npt.NDArray[np.int64] = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        self.ends: npt.NDArray[np.int64] = np.cumsum(self.lengths)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(b"".join(texts), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.lengths)

    def start_with(self, prefix: bytes) -> npt.NDArray[np.bool_]:
        """Returns which strings start with these bytes."""
        return self._have(prefix, self.ends - self.lengths)

    def end_with(self, suffix: bytes) -> npt.NDArray[np.bool_]:
        """Returns which strings end with these bytes."""
        return self._have(suffix, self.ends - len(suffix))

    def hashes(self) -> npt.NDArray[np.int64]:
        """Returns a 64-bit hash of each string (FNV-1a, then its length); equal for equal strings, on every machine."""
        hashes = np.full(len(self), _OFFSET, dtype=np.uint64)
        # Texts in order of length, longest first: those that still have a byte at a place are the first ones.
        order = np.argsort(-self.lengths, kind="stable")
        starts, lengths = (self.ends - self.lengths)[order], self.lengths[order]
        ordered = hashes[order]
        for place in range(int(lengths[0]) if len(lengths) else 0):
            count = int(np.searchsorted(-lengths, -place, side="left"))
            ordered[:count] = (ordered[:count] ^ self.bytes[starts[:count] + place]) * _PRIME
        hashes[order] = ordered ^ lengths.astype(np.uint64)
        return hashes.view(np.int64)

    def _have(self, part: bytes, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Returns which strings have these bytes at the given starts."""
        found = self.lengths >= len(part)
        if part:
            places = starts[found, None] + np.arange(len(part))
            found[found] = (self.bytes[places] == np.frombuffer(part, dtype=np.uint8)).all(axis=1)
        return found
