"""One rank looks, all ranks know: a decision by files must be the same on every rank of a synchronous run."""

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
    """Base of hooks that look by the eyes of rank 0."""

    def begin(self) -> None:
        """Joins the run of the launcher, if nobody has: a run without one is a run of one rank."""
        collective.init()


def agree(look: Callable[[], Sequence[int]], otherwise: Sequence[int]) -> list[int]:
    """What `look` returns on rank 0, on every rank; a collective call.

    Args:
        look: Called on rank 0 only. Must not leave the others waiting, so what it raises is logged.
        otherwise: Taken if it raises; as long as what it returns.
    """
    values = list(otherwise)
    if collective.rank() == 0:
        try:
            values = list(look())
        except (OSError, OpError, ValueError) as error:
            _log.warning("cannot look for control files: %s", error)
    return [int(value) for value in collective.broadcast(torch.tensor(values, dtype=torch.int64))]
