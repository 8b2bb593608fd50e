"""Lets the ranks of a synchronous run end together, although their data ends at different batches.

A rank that left alone would keep the others waiting in their next collective call. So the ranks tell each other after
every step whether it was their last, and all stop with the first. `monolith.train.EofAwareTask` knows which one it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from monolith import collective
from monolith.hook import Hook

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.hook import StepContext

__all__ = ["EofHook"]


class EofHook(Hook):
    """Stops all ranks after the step in which one of them had its last batch. Stands before the other hooks of a task.

    Args:
        is_last: Whether the step that ran now had the last batch of this rank.
    """

    def __init__(self, is_last: Callable[[], bool]) -> None:
        self._is_last = is_last

    def after_run(self, context: StepContext) -> None:
        """Asks all ranks; a collective call."""
        flags = collective.allgather(torch.tensor([int(self._is_last())], dtype=torch.int64))
        if bool(flags.any()):
            context.request_stop()
