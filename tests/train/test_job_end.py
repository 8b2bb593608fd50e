"""For whom the chief of a job waits at its end."""

from __future__ import annotations

import pytest

from monolith.cluster.job_state import JobMember, JobState
from monolith.train._job_end import _unfinished


@pytest.mark.parametrize(("stops", "awaited"), [(False, [1, 2]), (True, [1])])
def test_a_worker_that_is_gone_is_not_waited_for_once_the_job_is_to_stop(stops: bool, awaited: list[int]) -> None:
    """It may have been told to stop before it had joined: nobody starts it again."""
    state = JobState(
        num_workers=5,
        members=(JobMember(role="worker", index=0), JobMember(role="worker", index=1)),
        finished=frozenset({3}),
        left=frozenset({4}),
        stop_requested=stops,
    )
    assert _unfinished(state, may_adopt=True) == awaited
