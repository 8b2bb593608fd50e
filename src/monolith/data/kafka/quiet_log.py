"""Log of librdkafka, without the same line twenty times a second while a broker is unreachable."""

from __future__ import annotations

import logging
import time

_REPEAT_SECONDS = 10.0


class SeldomRepeated(logging.Filter):
    """Lets one line of each kind through every ten seconds; the first word of a line is its kind."""

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether to log the line."""
        kind, now = record.getMessage().split(" ", 1)[0], time.monotonic()
        if now - self._told.get(kind, -_REPEAT_SECONDS) < _REPEAT_SECONDS:
            return False
        self._told[kind] = now
        return True


def new_library_log(number: int) -> logging.Logger:
    """Returns the logger of one consumer."""
    logger = logging.Logger(f"{__name__.rpartition('.')[0]}.librdkafka-{number}")  # noqa: LOG001 - one for each, not kept
    logger.parent = logging.getLogger(__name__.rpartition(".")[0])
    logger.addFilter(SeldomRepeated())
    return logger
