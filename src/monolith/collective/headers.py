"""The small exchange at the beginning of a call: a row of whole numbers from every rank to every other.

The rows have one length whatever the ranks are about to do, so that those who disagree can still say so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from torch import Tensor

    from monolith.collective.wire import Wire

DIGEST, FLAGS, NUM_SIZES, TEXT_BYTES, _SIZES = range(5)
"""Columns of a row; the sizes follow."""
_FIRST_ROOM = 12
"""Sizes that fit into a row at first; the room grows to what calls need, on all ranks with the same call."""


class Headers:
    """Headers over one wire; used by the calls of its line, which are in order."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._room = 0
        self._grow(_FIRST_ROOM)

    def exchange(self, head: tuple[int, int, int, int], sizes: Tensor | None) -> list[list[int]]:
        """Tells this rank's head to all; returns those of all ranks.

        Args:
            head: Digest, flags, number of sizes for each rank, length of the text.
            sizes: Int64 ``[ranks, k]``, one row for each rank.
        """
        self._sent_numbers[:, :_SIZES] = head
        num_sizes = head[NUM_SIZES]
        if 0 < num_sizes <= self._room and sizes is not None:
            self._sent_numbers[:, _SIZES : _SIZES + num_sizes] = sizes.numpy()
        else:
            self._sent_numbers[:, _SIZES:] = 0
        self._wire.exchange(self._received, self._sent, self._ones, self._ones)
        heads: list[list[int]] = self._received_numbers[:, :_SIZES].tolist()
        return heads

    def sizes(self, num_sizes: int, sizes: Tensor | None) -> Tensor:
        """Int64 ``[ranks, num_sizes]``: what each rank has told this one, once all agree about their number."""
        if num_sizes <= self._room:
            return self._received[:, _SIZES : _SIZES + num_sizes].clone()
        received = torch.empty(self._wire.size, num_sizes, dtype=torch.int64)
        sent = torch.zeros_like(received) if sizes is None else sizes.contiguous()
        self._wire.exchange(received, sent, self._ones, self._ones)
        self._grow(num_sizes)  # the next such call needs one exchange
        return received

    def _grow(self, room: int) -> None:
        self._room = room
        self._ones = [1] * self._wire.size
        self._sent = torch.zeros(self._wire.size, _SIZES + room, dtype=torch.int64)
        self._received = torch.zeros_like(self._sent)
        self._sent_numbers, self._received_numbers = self._sent.numpy(), self._received.numpy()


def number_of(sizes: Tensor | None, num_ranks: int) -> int:
    """How many sizes there are for each rank; sizes of another form are refused."""
    if sizes is None:
        return 0
    if sizes.dtype != torch.int64 or sizes.ndim != 2 or len(sizes) != num_ranks or sizes.device.type != "cpu":
        raise InvalidArgumentError(
            f"collective: sizes must be int64 [{num_ranks} ranks, k] on the CPU, got {sizes.dtype} "
            f"{list(sizes.shape)} on {sizes.device.type}"
        )
    return sizes.shape[1]
