"""When ranks save or remove rows: rank 0 checks its clock, and all of them are due at the same step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.hooks.timer import SecondOrStepTimerWithTideSetting

if TYPE_CHECKING:
    from monolith.hooks.timer import SecondOrStepTimer
    from monolith.train.rank_part import RankPart

__all__ = ["RankTimer"]


class RankTimer(SecondOrStepTimerWithTideSetting):
    """A timer that is due on all ranks when that of rank 0 is. Changes that all ranks make take effect immediately.

    Args:
        timer: Its interval.
        part: The run.
    """

    def __init__(self, timer: SecondOrStepTimer, part: RankPart) -> None:
        super().__init__(every_steps=1)
        self._timer = timer
        self._wish = part.add_wish(lambda step: part.is_first and timer.should_trigger_for_step(step))

    def reset(self) -> None:
        """Clears the time at which it was last due."""
        super().reset()
        self._timer.reset()

    def should_trigger_for_step(self, step: int) -> bool:
        """Returns whether the timer is due at this step, which the ranks have just made."""
        if not self.enabled or step == self.last_triggered_step():
            return False
        return self._due or self._wish.is_granted

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Notes that it was done at this step."""
        super().update_last_triggered_step(step)
        return self._timer.update_last_triggered_step(step)
