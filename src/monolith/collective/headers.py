"""The small exchange at the beginning of a call: a row of integers from every rank to every other.

The rows have one length whatever the ranks are about to do, so that ranks that disagree can still report it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from torch import Tensor

    from monolith.collective.wire import Wire

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
