"""What a checkpoint keeps of a job: how many workers it had, whose input has ended, and who took which files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from monolith.errors import FailedPreconditionError
from monolith.ps.protos import coordinator_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.ps._job_line import JobLine

__all__ = ["SavedJob", "require_same_shares"]


class SavedJob:
    """The state of a job for ``TrainState(extra={"job": job.saved})`` of the chief. Any thread may call it.

    Take it at the same moment as the rows, or later.

    Args:
        line: To the coordinator.
        num_workers: Of the job now.
    """

    def __init__(self, line: JobLine, num_workers: int) -> None:
        self._line = line
        self._num_workers = num_workers
        self.knows_step = False
        """Whether what was loaded last says, with the clocks of the servers, which global step it is of."""

    def state_dict(self) -> dict[str, Any]:
        """The state as the home server has it now."""
        content: dict[str, Any] = json.loads(self._line.ask("SaveJob", messages.SeatRequest()).content)
        return content

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state: the home server forgets who took which files since.

        Raises:
            FailedPreconditionError: workers have fixed shares of the input, and were as many others then.
        """
        require_same_shares(state, self._num_workers)
        self._line.ask("LoadJob", messages.LoadJobRequest(content=json.dumps(dict(state)).encode()))
        self.knows_step = "step_offset" in state


def require_same_shares(state: Mapping[str, Any], num_workers: int) -> None:
    """Refuses to go on with another number of workers where each has a fixed share of the input.

    Raises:
        FailedPreconditionError: says both numbers.
    """
    then = state["num_workers"]
    if then != num_workers and not state["queues"]:
        raise FailedPreconditionError(
            f"job: the checkpoint is of {then} workers, each with a fixed share of the input, and now there are"
            f" {num_workers}; start {then}, or train with enable_dynamic_sharding from the beginning, where any number"
            " may go on"
        )
