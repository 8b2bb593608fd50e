"""What a checkpoint keeps of a job: how many workers it had, whose input has ended, and who took which files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from monolith.ps.protos import coordinator_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.ps._job_line import JobLine

__all__ = ["OF_ONE_PROCESS", "SavedJob"]

OF_ONE_PROCESS: Final[dict[str, Any]] = {"num_workers": 1, "finished": {}, "queues": {}}
"""What a process that trained alone had, whose checkpoint says nothing of a job."""


class SavedJob:
    """The state of a job for ``TrainState(extra={"job": job.saved})`` of the chief. Any thread may call it.

    Take it at the same moment as the rows, or later.

    Args:
        line: To the coordinator.
    """

    def __init__(self, line: JobLine) -> None:
        self._line = line
        self.was_loaded = False
        """Whether a checkpoint had one, since this was set to False."""
        self.knows_step = False
        """Whether what was loaded last says, with the clocks of the servers, which global step it is of."""

    def state_dict(self) -> dict[str, Any]:
        """The state as the home server has it now."""
        content: dict[str, Any] = json.loads(self._line.ask("SaveJob", messages.SeatRequest()).content)
        return content

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state: the home server forgets who took which files since.

        Its shares of the input stay as many as they were. Workers train those of their numbers, and then the rest.
        """
        self.was_loaded = True
        self._line.ask("LoadJob", messages.LoadJobRequest(content=json.dumps(dict(state)).encode()))
        self.knows_step = "step_offset" in state
