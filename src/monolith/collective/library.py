"""The interfaces of a library of collective calls and of its key store.

`torch_distributed` and `foreign_libraries` implement the library. Every rank makes the same calls in the same order.
Tensors go in and come out without autograd.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    from torch import Tensor

    from monolith.collective.serial_executor import SerialExecutor


class KeyStore(Protocol):
    """The used interface of a store of torch.distributed. Thread-safe."""

    def set(self, key: str, value: str, /) -> None:
        """Writes a value."""

    def get(self, key: str, /) -> bytes:
        """Returns a value; waits until it exists."""

    def check(self, keys: list[str], /) -> bool:
        """Returns whether all keys exist."""

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        """Returns when all keys exist."""

    def compare_set(self, key: str, expected: str, value: str, /) -> bytes:
        """Writes a value if the current one is `expected` (``""``: or if there is none); returns the current value."""


class MemoryKeyStore:
    """A key store for a run of one process, without a socket."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: str, /) -> None:
        """Writes a value."""
        with self._changed:
            self._values[key] = value.encode()
            self._changed.notify_all()

    def get(self, key: str, /) -> bytes:
        """Returns a value; waits until it exists."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._values)
            return self._values[key]

    def check(self, keys: list[str], /) -> bool:
        """Returns whether all keys exist."""
        with self._changed:
            return self._values.keys() >= set(keys)

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        """Returns when all keys exist."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._values.keys() >= set(keys), timeout.total_seconds()):
                missing = sorted(set(keys) - self._values.keys())
                raise TimeoutError(f"{missing[0]} was not set within {timeout.total_seconds():g} s")

    def compare_set(self, key: str, expected: str, value: str, /) -> bytes:
        """Writes a value if the current one is `expected` (``""``: or if there is none); returns the current value."""
        with self._changed:
            if self._values.get(key, b"") == expected.encode():
                self._values[key] = value.encode()
                self._changed.notify_all()
            return self._values.get(key, expected.encode())


class CollectiveLibrary(Protocol):
    """Calls that all ranks of a run make together. Not thread-safe."""

    def init(self, timeout_seconds: float) -> None:
        """Joins the run. Idempotent."""

    def shutdown(self) -> None:
        """Leaves the run."""

    def training_line(self) -> SerialExecutor:
        """Returns the line of all calls of training, including those of this class."""

    def saving_line(self) -> SerialExecutor:
        """Returns a second line, with connections of its own, for background work."""

    def rank(self) -> int:
        """Returns the number of this process, from 0."""

    def size(self) -> int:
        """Returns the number of processes."""

    def allgather(self, tensor: Tensor) -> Tensor:
        """Returns the rows of all ranks, in the order of the ranks."""

    def broadcast(self, tensor: Tensor, root_rank: int) -> Tensor:
        """Returns the tensor of the root, as a new one."""

    def broadcast_parameters(self, tensors: Mapping[str, Tensor], root_rank: int) -> None:
        """Overwrites these tensors with those of the root."""

    def allreduce(self, tensor: Tensor) -> Tensor:
        """Returns the sum of all ranks' tensors, as a new one."""

    def alltoall(self, tensor: Tensor, sizes: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Returns the rows that each rank has for this one, in the order of the ranks, and their numbers.

        Args:
            tensor: The rows for rank 0 first.
            sizes: Number of rows for each rank.
        """

    def barrier(self) -> None:
        """Returns when all ranks have called it."""

    def key_store(self) -> KeyStore:
        """Returns a store by which ranks exchange small values by name, outside of their common calls."""
