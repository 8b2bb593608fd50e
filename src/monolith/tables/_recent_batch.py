"""Caches the last lookup of a thread, so that training on the same ids can reuse its plan."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from monolith import _core

FEWEST_IDS = 4096
"""Below this a plan costs less than remembering it."""


class RecentBatch(threading.local):
    """Predicts for a lookup whether an update of the same ids will follow, from the thread's previous calls.

    A lookup alone is fastest without a plan; a lookup and an update are fastest with one plan for both. Most threads do
    always the one or always the other, so what came last is what is expected next.
    """

    def __init__(self) -> None:
        self._is_training = False
        self._looked_up: int | None = None
        """Identity of the object with the ids of the last lookup."""
        self._plan: _core.Plan | None = None
        """Plan of the last lookup, until an update takes it."""

    def expects_update(self, given: object) -> bool:
        """Returns whether a lookup of the ids in this object should make a plan and `keep` it."""
        if self._plan is not None:
            self._plan, self._is_training = None, False
        self._looked_up = id(given)
        return self._is_training

    def keep(self, plan: _core.Plan) -> None:
        """Keeps a plan for the update that follows."""
        self._plan = plan

    def take_plan(self, given: object, ids: NDArray[np.int64]) -> _core.Plan | None:
        """Returns the plan of these ids, given as this object, if they were looked up last; each plan is returned once.

        The caller may have changed the ids meanwhile, so they are compared with the plan.
        """
        plan, self._plan = self._plan, None
        if plan is None:
            self._is_training = self._looked_up == id(given)
            return None
        self._is_training = plan.is_of(ids)
        return plan if self._is_training else None
