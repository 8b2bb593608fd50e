"""Decisions of rank 0 for all ranks: a decision by files must be the same on every rank of a synchronous run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from monolith import collective
from monolith.errors import OpError
from monolith.hook import Hook

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["AgreeingHook", "agree"]

_log = logging.getLogger(__name__)


class AgreeingHook(Hook):
    """Base class of hooks whose checks run on rank 0."""

    def begin(self) -> None:
        """Joins the run of the launcher, if this process has not: without a launcher it is a run of one rank."""
        collective.init()


def agree(look: Callable[[], Sequence[int]], otherwise: Sequence[int]) -> list[int]:
    """Returns the result of `look` on rank 0, on every rank; a collective call.

    Args:
        look: Called on rank 0 only. Its exceptions are logged, so that the other ranks do not wait forever.
        otherwise: Result if `look` raises; of the same length.
    """
    values = list(otherwise)
    if collective.rank() == 0:
        try:
            values = list(look())
        except (OSError, OpError, ValueError) as error:
            _log.warning("cannot check for control files: %s", error)
    return [int(value) for value in collective.broadcast(torch.tensor(values, dtype=torch.int64))]
