"""Retries of failed connections."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, TypeVar

from monolith.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.clock import Clock

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

MAX_TRIES = 5
MAX_BACKOFF_SECONDS = 5.0


def retry_with_socket_error(
    call: Callable[[], _T], *, max_backoff_seconds: float = MAX_BACKOFF_SECONDS, clock: Clock | None = None
) -> _T:
    """Retries a call on socket errors, at most five tries, and raises the last error.

    Between two tries it sleeps for a random part of ``max_backoff_seconds``, so that the processes of a job that lost a
    service at the same time do not all reconnect at the same time. A response that refuses the request is no socket
    error.
    """
    clock = clock or SystemClock()
    for tries in range(1, MAX_TRIES + 1):
        try:
            return call()
        except OSError as err:
            if tries == MAX_TRIES:
                raise
            pause = random.uniform(0, max_backoff_seconds)  # noqa: S311  # spreads load, guards nothing
            _log.warning("try %d of %d failed (%s); next in %.1f s", tries, MAX_TRIES, err, pause)
            clock.sleep(pause)
    raise AssertionError("the last try returns or raises")
