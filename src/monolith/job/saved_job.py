"""State of a job in a checkpoint: number of workers, finished workers, and file assignments."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from monolith.rpc.protos import coordinator_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.job.coordinator_connection import CoordinatorConnection

OF_ONE_PROCESS: Final[dict[str, Any]] = {"num_workers": 1, "finished": {}, "queues": {}}
"""State of a process that trained alone, whose checkpoint has no job."""


class SavedJob:
    """The state of a job for ``TrainState(extra={"job": job.saved})`` of the chief. Thread-safe.

    Capture it together with the rows, or later.

    Args:
        line: Connection to the coordinator.
    """

    def __init__(self, line: CoordinatorConnection) -> None:
        self._line = line
        self.was_loaded = False
        """Whether a checkpoint with a job was loaded since this was set to False."""
        self.knows_step = False
        """Whether the last loaded state gives, with the clocks of the servers, its global step."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the current state of the job from the home server."""
        content: dict[str, Any] = json.loads(self._line.ask("SaveJob", messages.SeatRequest()).content)
        return content

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a state: the home server discards later file assignments.

        The number of shares of the input stays. Workers train the shares of their own indices, and then the remaining
        ones.
        """
        self.was_loaded = True
        self._line.ask("LoadJob", messages.LoadJobRequest(content=json.dumps(dict(state)).encode()))
        self.knows_step = "step_offset" in state
