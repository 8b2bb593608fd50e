"""Memory for what is read from a stream, used again once nobody looks at it any more.

Fresh memory of a mebibyte or more costs as much as reading into it: the operating system clears every page at its first
touch. A block that was handed out keeps its memory for as long as it lives.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["ChunkPool"]

_MOST_KEPT = 8
_STEP = 1 << 20
"""Memory is taken in multiples of so many bytes, so that it fits requests that differ by a little."""


@cache
def _lease_type(size: int) -> type[ctypes.Array[ctypes.c_uint8]]:
    """Kept, because making such a type takes longer than all the rest."""
    return ctypes.c_uint8 * size


class ChunkPool:
    """Hands out arrays of bytes, and gets their memory back when the last array that looks at it is gone.

    Thread-safe; one for all readers of the process.
    """

    def __init__(self) -> None:
        self._free: deque[bytearray] = deque(maxlen=_MOST_KEPT)
        self._lent: dict[int, tuple[weakref.ref[Any], bytearray]] = {}

    def take(self, size: int) -> npt.NDArray[np.uint8]:
        """An array of this size, of whatever bytes."""
        memory = self._find(size)
        # Numpy's views do not know each other, but all of them hold this object: when it goes, the memory is free.
        lease = _lease_type(len(memory)).from_buffer(memory)
        watch = weakref.ref(lease, self._give_back)
        self._lent[id(watch)] = watch, memory
        return np.frombuffer(memoryview(lease), dtype=np.uint8)[:size]

    def _give_back(self, watch: weakref.ref[Any]) -> None:
        self._free.append(self._lent.pop(id(watch))[1])

    def _find(self, size: int) -> bytearray:
        with suppress(IndexError):  # none left, or another reader was quicker
            while True:
                memory = self._free.pop()  # the last one used, which may still be in a cache
                if len(memory) >= size:
                    return memory
        return bytearray(-(-size // _STEP) * _STEP)
