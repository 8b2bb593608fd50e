"""Checks whether a follower of a delta log is up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monolith.deltalog.follow import Follower, Staleness

LONGEST_LAG = 30.0
"""Lag in seconds above which a follower is not ready."""


def lag_reason(follower: Follower | None) -> str | None:
    """Returns why a follower is not ready, as a sentence; None if it is ready, or there is none."""
    if follower is None:
        return None
    problem = follower.error or follower.away
    if problem is not None:
        return f"the delta log cannot be followed: {problem.message}"
    if not follower.is_caught_up:
        return f"it is catching up with the delta log: {follower.lag.increments} increments to come"
    seconds = follower.lag.seconds
    return None if seconds <= LONGEST_LAG else f"it lags the delta log by {seconds:.0f} s"


def why_stale(staleness: Staleness | None, at_most_seconds: float | None) -> str | None:
    """Returns why rows are too stale to serve, as a sentence; None if they are not, or there is no limit."""
    if staleness is None or at_most_seconds is None or staleness.now <= at_most_seconds:
        return None
    return (
        f"the newest event that it has learned from is {staleness.now:.0f} s old, at most {at_most_seconds:g} s"
        " expected: is the trainer running?"
    )
