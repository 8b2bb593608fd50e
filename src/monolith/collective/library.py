"""The interface of a library of collective calls; `torch_distributed` and `foreign_libraries` implement it.

Every rank makes the same calls in the same order. Tensors go in and come out without autograd.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from monolith.collective.key_store import KeyStore
    from monolith.collective.serial_executor import SerialExecutor


class CollectiveLibrary(Protocol):
    """Calls that all ranks of a run make together. Not thread-safe."""

    def init(self, timeout_seconds: float) -> None:
        """Joins the run. Idempotent."""
        ...

    def shutdown(self) -> None:
        """Leaves the run."""
        ...

    def training_line(self) -> SerialExecutor:
        """Returns the line of all calls of training, including those of this class."""
        ...

    def saving_line(self) -> SerialExecutor:
        """Returns a second line, with connections of its own, for background work."""
        ...

    def rank(self) -> int:
        """Returns the number of this process, from 0."""
        ...

    def size(self) -> int:
        """Returns the number of processes."""
        ...

    def allgather(self, tensor: Tensor) -> Tensor:
        """Returns the rows of all ranks, in the order of the ranks."""
        ...

    def broadcast(self, tensor: Tensor, root_rank: int) -> Tensor:
        """Returns the tensor of the root, as a new one."""
        ...

    def broadcast_parameters(self, tensors: Mapping[str, Tensor], root_rank: int) -> None:
        """Overwrites these tensors with those of the root."""
        ...

    def allreduce(self, tensor: Tensor) -> Tensor:
        """Returns the sum of all ranks' tensors, as a new one."""
        ...

    def alltoall(self, tensor: Tensor, sizes: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Returns the rows that each rank has for this one, in the order of the ranks, and their numbers.

        Args:
            tensor: The rows for rank 0 first.
            sizes: Number of rows for each rank.
        """
        ...

    def barrier(self) -> None:
        """Returns when all ranks have called it."""
        ...

    def key_store(self) -> KeyStore:
        """Returns a store by which ranks exchange small values by name, outside of their common calls."""
        ...
