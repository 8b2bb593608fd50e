"""Whether what follows a delta log has what the log has."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monolith.online.follower import Follower

__all__ = ["LONGEST_LAG", "why_behind"]

LONGEST_LAG = 30.0
"""Seconds behind the log from which on a follower is not ready any more."""


def why_behind(follower: Follower | None) -> str | None:
    """Why a follower is not ready, in a sentence; None: it is, or there is none."""
    if follower is None:
        return None
    problem = follower.error or follower.away
    if problem is not None:
        return f"the delta log cannot be followed: {problem.message}"
    if not follower.is_caught_up:
        return f"it is catching up with the delta log: {follower.lag.increments} increments to come"
    seconds = follower.lag.seconds
    return None if seconds <= LONGEST_LAG else f"it is {seconds:.0f} s behind the delta log"
