"""The exchanges of one process group, on which all other calls are built.

All ranks must begin an exchange, or it hangs; sizes that differ crash the library. So only the calls of its line use a
wire, which are in order, and only for what the ranks have agreed on (`lock_step`). `Headers` make the small exchange at
the beginning of a call: a row of integers from every rank to every other. The rows have one length whatever the ranks
are about to do, so that ranks that disagree can still report it.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

import torch
import torch.distributed as dist

from monolith.errors import FailedPreconditionError, InternalError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from monolith.collective.library import CollectiveLibrary

P = ParamSpec("P")
T = TypeVar("T")


class ExchangeError(Exception):
    """An exchange failed in the library: a rank has ended, or did not answer in time. The line converts the error."""


def exchanging(method: Callable[P, T]) -> Callable[P, T]:
    """Decorates a method so that errors of the library are distinguished from those of the caller's own code."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except RuntimeError as error:
            raise ExchangeError(str(error)) from error

    return call


class Wire(Protocol):
    """Exchanges among the ranks of one process group. Not thread-safe."""

    @property
    def rank(self) -> int:
        """Number of this process, from 0."""

    @property
    def size(self) -> int:
        """Number of processes."""

    def exchange(
        self, received: Tensor, sent: Tensor, received_sizes: Sequence[int], sent_sizes: Sequence[int]
    ) -> None:
        """Sends rows to each rank and receives rows of each rank; a rank's own rows are copied, not sent.

        Args:
            received: Output, with the rows of rank 0 first. Contiguous.
            sent: The rows for rank 0 first; same type and same dims after the first. Contiguous.
            received_sizes: Number of rows from each rank.
            sent_sizes: Number of rows for each rank.
        """

    def exchange_evenly(self, received: Tensor, sent: Tensor) -> None:
        """Sends one row to each rank and receives one of each rank: ``[ranks, k]``, contiguous."""

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Returns the tensors of all ranks, which have one type and one shape."""

    def broadcast(self, tensor: Tensor, root_rank: int) -> None:
        """Overwrites a contiguous tensor with that of the root."""

    def add(self, tensor: Tensor) -> None:
        """Overwrites a contiguous tensor with the sum over all ranks; the order of the addition is unspecified."""

    def close(self) -> None:
        """Closes the connections: ranks that wait for this one get an error."""


class TorchWire:
    """A process group of torch.distributed for exclusive use: Gloo for the CPU, NCCL for GPUs."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group: dist.ProcessGroup | None = group
        self.rank, self.size = group.rank(), group.size()

    @exchanging
    def exchange(
        self, received: Tensor, sent: Tensor, received_sizes: Sequence[int], sent_sizes: Sequence[int]
    ) -> None:
        """Sends rows to each rank and receives rows of each rank; a rank's own rows are copied, not sent."""
        # The library copies a rank's own rows by itself. The ranks have agreed on what `dist.all_to_all_single` would
        # check.
        row_bytes = sent.element_size() * math.prod(sent.shape[1:])
        self._open_group().alltoall_base(
            as_bytes(received),
            as_bytes(sent),
            [row_bytes * size for size in received_sizes],
            [row_bytes * size for size in sent_sizes],
        ).wait()

    @exchanging
    def exchange_evenly(self, received: Tensor, sent: Tensor) -> None:
        """Sends one row to each rank and receives one of each rank."""
        self._open_group().alltoall_base(received, sent, [], []).wait()

    @exchanging
    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Returns the tensors of all ranks, which have one type and one shape."""
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        if tensor.numel():
            dist.all_gather([as_bytes(part) for part in parts], as_bytes(tensor), group=self._group)
        return parts

    @exchanging
    def broadcast(self, tensor: Tensor, root_rank: int) -> None:
        """Overwrites a contiguous tensor with that of the root."""
        if tensor.numel():
            group = self._open_group()  # `group_src` came with torch 2.6
            dist.broadcast(as_bytes(tensor), dist.get_global_rank(group, root_rank), group=group)

    @exchanging
    def add(self, tensor: Tensor) -> None:
        """Overwrites a contiguous tensor with the sum over all ranks."""
        if tensor.numel():
            dist.all_reduce(tensor, group=self._group)

    def close(self) -> None:
        """Closes the connections: ranks that wait for this one get an error."""
        group, self._group = self._group, None
        if group is not None and dist.is_initialized():
            dist.destroy_process_group(group)

    def _open_group(self) -> dist.ProcessGroup:
        if self._group is None:
            raise FailedPreconditionError("collective: these connections are closed")
        return self._group


class LoneWire:
    """The wire of a run of one process: it opens no socket."""

    rank = 0
    size = 1

    def exchange(
        self, received: Tensor, sent: Tensor, received_sizes: Sequence[int], sent_sizes: Sequence[int]
    ) -> None:
        """Copies its own rows."""
        received[: received_sizes[0]].copy_(sent[: sent_sizes[0]])

    def exchange_evenly(self, received: Tensor, sent: Tensor) -> None:
        """Copies its own row."""
        received.copy_(sent)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Returns a copy."""
        return [tensor.clone()]

    def broadcast(self, tensor: Tensor, root_rank: int) -> None:
        """Does nothing: the tensor is that of the root."""

    def add(self, tensor: Tensor) -> None:
        """Does nothing: the tensor is the sum."""

    def close(self) -> None:
        """Does nothing: there are no connections."""


class LibraryWire:
    """The calls of another library, which has no process groups to close."""

    def __init__(self, library: CollectiveLibrary) -> None:
        self._library = library
        self.rank, self.size = library.rank(), library.size()

    def exchange(
        self, received: Tensor, sent: Tensor, received_sizes: Sequence[int], sent_sizes: Sequence[int]
    ) -> None:
        """Sends rows to each rank and receives rows of each rank."""
        rows, sizes = self._library.alltoall(sent, sent_sizes)
        if list(sizes) != list(received_sizes):
            raise InternalError(f"collective: rows of {list(received_sizes)} were agreed about, got {list(sizes)}")
        received.copy_(rows.reshape(received.shape))

    def exchange_evenly(self, received: Tensor, sent: Tensor) -> None:
        """Sends one row to each rank and receives one of each rank."""
        self.exchange(received, sent, [1] * self.size, [1] * self.size)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Returns the tensors of all ranks, which have one type and one shape."""
        return list(self._library.allgather(tensor.unsqueeze(0)).unbind())

    def broadcast(self, tensor: Tensor, root_rank: int) -> None:
        """Overwrites a tensor with that of the root."""
        tensor.copy_(self._library.broadcast(tensor, root_rank))

    def add(self, tensor: Tensor) -> None:
        """Overwrites a tensor with the sum over all ranks."""
        tensor.copy_(self._library.allreduce(tensor))

    def close(self) -> None:
        """Does nothing: the library closes its connections when it is shut down."""


def as_bytes(tensor: Tensor) -> Tensor:
    """Returns the memory of a contiguous tensor as bytes, so that backends need not support its type."""
    return tensor.view(-1).view(torch.uint8)


_SIZES = 4
"""Column where the sizes begin, after the head."""
_FIRST_ROOM = 12
"""Initial number of sizes per row; it grows to what calls need, on all ranks with the same call."""


class Headers:
    """Headers over one wire; used by the calls of its line, which are in order."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._nothing = torch.empty(wire.size, 0, dtype=torch.int64)
        self._room = 0
        self._grow(_FIRST_ROOM)

    def exchange(self, head: tuple[int, int, int, int], sizes: Tensor | None) -> list[list[int]]:
        """Sends this rank's head to all; returns those of all ranks.

        Args:
            head: Digest, flags, number of sizes for each rank, length of the text.
            sizes: Int64 ``[ranks, k]``, one row for each rank.
        """
        _, _, num_sizes, _ = head
        self._sent_heads[:] = head
        if sizes is not None and num_sizes <= self._room:  # receivers ignore the columns after them
            self._sent_numbers[:, _SIZES : _SIZES + num_sizes] = sizes.numpy()
        elif sizes is None:
            self._sent_numbers[:, _SIZES:] = 0  # an idle rank has no data for these sizes
        self._wire.exchange_evenly(self._received, self._sent)
        heads: list[list[int]] = self._received_heads.tolist()
        return heads

    def sizes(self, num_sizes: int, sizes: Tensor | None) -> Tensor:
        """Returns int64 ``[ranks, num_sizes]``: sizes from each rank for this one, once all agree on their number."""
        if num_sizes == 0:
            return self._nothing
        if num_sizes <= self._room:
            return torch.from_numpy(self._received_numbers[:, _SIZES : _SIZES + num_sizes].copy())
        received = torch.empty(self._wire.size, num_sizes, dtype=torch.int64)
        sent = torch.zeros_like(received) if sizes is None else sizes.contiguous()
        self._wire.exchange_evenly(received, sent)
        self._grow(num_sizes)  # the next such call needs only one exchange
        return received

    def _grow(self, room: int) -> None:
        self._room = room
        self._sent = torch.zeros(self._wire.size, _SIZES + room, dtype=torch.int64)
        self._received = torch.zeros_like(self._sent)
        self._sent_numbers = self._sent.numpy()
        self._sent_heads = self._sent_numbers[:, :_SIZES]
        self._received_numbers = self._received.numpy()
        self._received_heads = self._received_numbers[:, :_SIZES]


def number_of(sizes: Tensor | None, num_ranks: int) -> int:
    """Returns the number of sizes for each rank; raises if they have another form."""
    if sizes is None:
        return 0
    if sizes.dtype != torch.int64 or sizes.ndim != 2 or sizes.shape[0] != num_ranks or not sizes.is_cpu:
        raise InvalidArgumentError(
            f"collective: sizes must be int64 [{num_ranks} ranks, k] on the CPU, got {sizes.dtype} "
            f"{list(sizes.shape)} on {sizes.device.type}"
        )
    return sizes.shape[1]
