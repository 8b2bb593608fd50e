"""Decides whether a numbered example is trained, skipped, or an error. Pure: no files, no clocks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from monolith.errors import DataLossError

if TYPE_CHECKING:
    from monolith.online.stream.config import StreamConfig
    from monolith.online.stream.counts import StreamCounts

_log = logging.getLogger(__name__)

_AHEAD_MS = 1000
"""Clock skew between two machines that is not counted as ahead."""


class Reached(NamedTuple):
    """Position in a partition."""

    number: int = 0
    """Number of the last returned or skipped example; 0: none."""
    place: int | None = None
    """Byte of the file or offset of the topic of that example; None: none. A reader that resumes there finds that
    example first, or detects that the file or topic was replaced."""


class Admission:
    """Filter that admits each number of each partition once. Not thread-safe.

    Args:
        name: Name of the stream, for messages.
        config: Which examples to skip.
        counts: Counters to update.
        reached: Position of each partition; updated by every example.
    """

    def __init__(self, name: str, config: StreamConfig, counts: StreamCounts, reached: list[Reached]) -> None:
        self._name = name
        self._config = config
        self._counts = counts
        self.reached = reached

    def admit(self, partition: int, number: int, known_ms: int, *, place: int, now_ms: int) -> int | None:
        """Returns the earliest time at which an example could be known if it is to be trained, else None.

        Raises:
            DataLossError: numbers before it are missing.
        """
        last = self.reached[partition].number
        if number <= last:
            self._repeat(partition, number, last)
            return None
        if number > last + 1 and last:
            self._miss(partition, number, last)
        self.reached[partition] = Reached(number, place)
        if known_ms > now_ms:
            self._counts.ahead += known_ms > now_ms + _AHEAD_MS
            known_ms = now_ms
        limit = self._config.max_lag_seconds
        if limit is not None and now_ms - known_ms > 1000 * limit:
            self._counts.too_old += 1
            return None
        self._counts.examples += 1
        return known_ms

    def _repeat(self, partition: int, number: int, last: int) -> None:
        if not self._counts.repeated:
            _log.warning(
                "%s, partition %d: example %d repeats after %d; repeated examples are skipped; if the joiner"
                " was restarted with another state_dir, train its examples with another model_dir",
                self._name,
                partition,
                number,
                last,
            )
        self._counts.repeated += 1

    def _miss(self, partition: int, number: int, last: int) -> None:
        missing = number - last - 1
        text = f"{self._name}, partition {partition}: example {number} follows {last}, {missing} are missing"
        if self._config.missing == "raise":
            raise DataLossError(
                f"{text}; they were deleted before they were trained, or the joiner wrote to two places: restore them,"
                ' or continue without them by missing="count" (--stream_missing count)'
            )
        _log.warning("%s, and are counted", text)
        self._counts.missing += missing
