"""One pass over a stream: blocks of examples as they arrive, and after each block the numbers returned so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.data.reading import Reading
from monolith.data.records.records import Records
from monolith.errors import OpError
from monolith.online.stream.position import StreamPosition

if TYPE_CHECKING:
    from monolith.clock import Clock
    from monolith.online.stream.admission import Admission
    from monolith.online.stream.dataset import ExampleStream
    from monolith.online.stream.files import ExampleSource, Fetched

__all__ = ["StreamReading"]

_PAUSE_SECONDS = 0.01
"""Interval of the polls of silent files."""
_WAIT_SECONDS = 0.05
"""Maximum wait for a topic in one call, so that a stop is noticed."""
_QUIET_SECONDS = 0.2
"""Silence after which postponed training work is completed."""
_LOOK_SECONDS = 0.5
"""Interval at which the amount of unread data is measured."""


class StreamReading(Reading[Records]):
    """Blocks of examples. After an error every further call raises it again; start a new reading at the position."""

    def __init__(
        self,
        stream: ExampleStream,
        source: ExampleSource,
        admission: Admission,
        *,
        size: int,
        clock: Clock,
        examples: int = 0,
    ) -> None:
        self._stream = stream
        self._source = source
        self._admission = admission
        self._size = size
        self._clock = clock
        self._examples = examples
        """Total number of examples returned since the beginning of the stream."""
        self._position = self._told((0, 0))
        self._error: OpError | None = None
        self._is_over = False
        self._last_came = clock.monotonic()
        self._looked = clock.monotonic()
        self._is_quiet = self._has_stalled = False

    @property
    def position(self) -> bytes:
        """Position after the last returned block."""
        return self._position

    def __next__(self) -> Records:
        if self._error is not None:
            raise self._error
        examples: list[bytes] = []
        times: list[int] = []
        deadline = 0.0
        while len(examples) < self._size and not self._is_over:
            came = self._fetch(self._size - len(examples), has_some=bool(examples))
            try:
                self._admit(came, examples, times)
            except OpError as error:
                self._error = error
                if not examples:
                    raise
                break  # the examples before the error are valid
            if examples and not deadline:
                deadline = self._clock.monotonic() + self._stream.config.linger_seconds
            elif examples and self._clock.monotonic() >= deadline:
                break
            self._is_over = self._stream.has_stopped or (
                not came and self._stream.config.stop_at_end and self._source.is_at_end()
            )
        if not examples:
            raise StopIteration
        self._note(times)
        return Records.from_list(examples)

    def close(self) -> None:
        """Closes files and connections."""
        self._is_over = True
        self._source.close()

    def _fetch(self, limit: int, *, has_some: bool) -> list[Fetched]:
        wait = self._stream.config.linger_seconds if has_some else _WAIT_SECONDS
        came = list(self._source.fetch(limit, wait))
        self._stream.counts.bad = self._stream.bad.count
        if came:
            self._flow()
        else:
            self._stream.wait(_PAUSE_SECONDS)
            self._be_silent()
        return came

    def _admit(self, came: list[Fetched], examples: list[bytes], times: list[int]) -> None:
        now_ms = int(1000 * self._clock.now())
        for partition, (number, known_ms, _, example), place in came:
            known = self._admission.admit(partition, number, known_ms, place=place, now_ms=now_ms)
            if known is not None:
                examples.append(example)
                times.append(known)

    def _note(self, times: list[int]) -> None:
        newest = max(times)
        self._examples += len(times)
        self._position = self._told((min(times), newest))
        is_full = len(times) == self._size
        self._stream.lag_seconds = max(0.0, self._clock.now() - newest / 1000) if is_full else 0.0
        self._look()

    def _told(self, known_ms: tuple[int, int]) -> bytes:
        return StreamPosition(self._admission.reached, self._examples).to_bytes(self._stream.name, known_ms)

    def _look(self) -> None:
        if self._clock.monotonic() - self._looked >= _LOOK_SECONDS:
            self._looked = self._clock.monotonic()
            self._stream.behind = self._source.behind()

    def _flow(self) -> None:
        now = self._clock.monotonic()
        silent, self._last_came = now - self._last_came, now
        if self._has_stalled and self._stream.on_flow is not None:
            self._stream.on_flow(silent)
        self._is_quiet = self._has_stalled = False

    def _be_silent(self) -> None:
        silent = self._clock.monotonic() - self._last_came
        is_stalled = silent >= self._stream.config.stall_seconds
        if (silent >= _QUIET_SECONDS and not self._is_quiet) or (is_stalled and not self._has_stalled):
            self._is_quiet, self._has_stalled = True, is_stalled
            self._stream.lag_seconds, self._stream.behind = 0.0, self._source.behind()
            if self._stream.on_silence is not None:
                self._stream.on_silence(silent)
