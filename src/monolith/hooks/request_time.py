"""Ends a synchronous run when its data reaches a given time."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from monolith.files import join, text_files
from monolith.hooks._rank_zero import AgreeingHook, agree

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.hook import HookedSession, StepContext
    from monolith.hooks.marker_files import SwitchedTimer

__all__ = ["ReqTimeControlDumpHook", "newest_request_time"]

_log = logging.getLogger(__name__)

REQUEST_TIME: Final = "req_time"
"""The column with the Unix seconds of an example's request, and the collection of a step's values."""
LIMIT_FILE = "limit_req_time"
_UNKNOWN = -1


def newest_request_time(session: HookedSession) -> int | None:
    """Returns the newest time in the last addition to the session's collection ``req_time``, or None."""
    added = session.collections.get(REQUEST_TIME)
    if not added:
        return None
    times = added[-1]
    if not hasattr(times, "numel"):
        return int(times)
    return int(times.max()) if times.numel() else None


class ReqTimeControlDumpHook(AgreeingHook):
    """Saves and stops when the request time of the data reaches the number in a file ``limit_req_time``.

    Args:
        model_dir: Folder of the file, local or remote.
        target_timer: Timer of the saves.
        step_interval: Steps from one check to the next.
        req_time: Reads the newest request time, Unix seconds, of the last step; by default from the session's
            collections.
    """

    def __init__(
        self,
        model_dir: str,
        target_timer: SwitchedTimer,
        step_interval: int = 1000,
        *,
        req_time: Callable[[HookedSession], int | None] = newest_request_time,
    ) -> None:
        if step_interval < 1:
            raise ValueError(f"ReqTimeControlDumpHook: step_interval must be >= 1, got {step_interval}")
        self._path = join(str(model_dir), LIMIT_FILE)
        self._timer = target_timer
        self._step_interval = step_interval
        self._req_time = req_time

    def after_run(self, context: StepContext) -> None:
        """Checks every `step_interval` steps."""
        if context.global_step % self._step_interval:
            return
        session = context.session
        unknown = (_UNKNOWN, _UNKNOWN)
        req_time, limit = agree(lambda: (_or_unknown(self._req_time(session)), self._read_limit()), unknown)
        if _UNKNOWN in {req_time, limit} or req_time < limit:
            return
        _log.info("step %d: request time %d has reached the limit %d; stopping", context.global_step, req_time, limit)
        self._timer.enable()
        self._timer.trigger_next()
        context.stop_together()

    def _read_limit(self) -> int:
        text = text_files.read_text(self._path)
        if text is None:
            return _UNKNOWN
        try:
            limit = int(text)
        except ValueError:
            limit = _UNKNOWN
        if limit < 0:
            raise ValueError(f"{self._path}: expected a Unix time in seconds, got {text.strip()!r}")
        return limit


def _or_unknown(value: int | None) -> int:
    return _UNKNOWN if value is None else value
