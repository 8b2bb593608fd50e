"""New checkpoints of a model directory, as another process writes them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from monolith.checkpoint import get_checkpoint_state
from monolith.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monolith.clock import Clock

__all__ = ["EVAL_TIMEOUT_SECONDS", "checkpoints_iterator", "step_of"]

_log = logging.getLogger(__name__)

EVAL_TIMEOUT_SECONDS: Final = 5 * 3600.0
"""An evaluation that waits so long for the next checkpoint has seen the last one."""
_LOOK_SECONDS = 1.0


def checkpoints_iterator(
    model_dir: str, *, timeout_seconds: float = EVAL_TIMEOUT_SECONDS, clock: Clock | None = None
) -> Iterator[str]:
    """Yields the newest checkpoint, then each new one as it appears; ends if none appears within the timeout.

    Of those that appear while the caller works on one, only the newest is yielded.
    """
    clock = SystemClock() if clock is None else clock
    seen: str | None = None
    while True:
        found = _next(model_dir, seen, timeout_seconds, clock)
        if found is None:
            _log.info("evaluation: no new checkpoint in '%s' for %.0f s", model_dir, timeout_seconds)
            return
        seen = found
        yield found


def step_of(path: str) -> int | None:
    """Returns the global step in the name of a checkpoint, or None.

    >>> step_of("/models/ranker/model.ckpt-60"), step_of("/models/model.ckpt")
    (60, None)
    """
    number = path.rpartition("-")[2]
    return int(number) if number.isdigit() and "-" in path else None


def _next(model_dir: str, seen: str | None, timeout_seconds: float, clock: Clock) -> str | None:
    deadline = clock.monotonic() + timeout_seconds
    while True:
        state = get_checkpoint_state(model_dir)
        newest = None if state is None else str(state.model_checkpoint_path)
        if newest is not None and newest != seen:
            return newest
        if clock.monotonic() >= deadline:
            return None
        clock.sleep(min(_LOOK_SECONDS, max(deadline - clock.monotonic(), 0.0)))
