"""Makes the ranks of a synchronous run wait for each other's saves."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from monolith import collective
from monolith.errors import OpError
from monolith.hooks.saver_listener import SaverListener

if TYPE_CHECKING:
    from monolith.hook import HookedSession

__all__ = ["SyncTrainingBarrierSaverListener"]

_log = logging.getLogger(__name__)


class SyncTrainingBarrierSaverListener(SaverListener):
    """No rank continues after a save before all have saved: the next export contains the files of all of them.

    A lost rank is logged, and does not fail the save of the others.
    """

    def after_save(self, session: HookedSession, global_step_value: int) -> None:  # noqa: ARG002 - a listener's signature
        """Waits for the other ranks."""
        try:
            collective.broadcast(torch.tensor([global_step_value], dtype=torch.int64))
        except (OpError, RuntimeError) as error:
            _log.error("step %d: not all ranks have saved: %s", global_step_value, error)
