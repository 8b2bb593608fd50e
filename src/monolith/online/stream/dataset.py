"""`ExampleStream`: the output of a joiner as a dataset whose position records which numbers were trained.

A reading returns blocks of examples as they arrive, and after each block the numbers returned so far. `StreamHook`
reports the state of a run on a stream: lag, stalls, and skipped examples.
"""

from __future__ import annotations

import logging
import threading
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from monolith.clock import SystemClock
from monolith.data import Dataset, Reading
from monolith.data.pipeline import whole_number
from monolith.data.records import BadRecords, Records
from monolith.errors import FailedPreconditionError, InvalidArgumentError, OpError
from monolith.hook import Hook
from monolith.observe import MetricClient
from monolith.online.joiner.endpoints import kafka_place
from monolith.online.joiner.topics import num_partitions
from monolith.online.stream.admission import Admission, StreamConfig, StreamCounts, StreamPosition
from monolith.online.stream.files import FileExamples
from monolith.online.stream.topics import TopicExamples

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.clock import Clock
    from monolith.hook import HookedSession, StepContext
    from monolith.observe import Progress
    from monolith.online.stream.admission import Reached
    from monolith.online.stream.files import ExampleSource, Fetched


class ExampleStream:
    """The examples of a joiner, each once: a position records the numbers read of each partition.

    The reader waits for a silent stream, returns full blocks if the stream is faster than training, and skips numbers
    already read if the stream was rewound. One process reads it; a second stream needs a second object.

    >>> ExampleStream("examples-{partition}", StreamConfig(partitions=2)).blocks(256)
    ExampleStream('examples-{partition}').blocks(256)

    Args:
        place: ``kafka://HOST:PORT[,HOST:PORT]/TOPIC``, or a path with ``{partition}`` in it.
        config: Optional settings.
        clock: Clock of this machine; None: the system clock.
    """

    def __init__(self, place: str, config: StreamConfig | None = None, *, clock: Clock | None = None) -> None:
        self.place = place
        self.config = StreamConfig() if config is None else config
        self.config.require_place(place)
        self._topic = kafka_place(place)
        self._clock = SystemClock() if clock is None else clock
        self.name = f"topic {self._topic.topic}" if self._topic is not None else PurePath(place).name
        """Name stored in positions, without brokers and folders, which may change."""
        self.unit = "bytes" if self._topic is None else "messages"
        """Unit of `behind`."""
        self.counts = StreamCounts()
        """Counts of the examples by outcome."""
        self.bad = BadRecords(self.config.max_bad_records)
        self.was_read = False
        """Whether reading has started."""
        self.lag_seconds = 0.0
        """Lag of the last block relative to the clock; 0 if no examples wait after it."""
        self.behind = 0
        """Amount of unread data, as of the last check."""
        self.on_silence: Callable[[float], None] | None = None
        """Called by the reading thread with the seconds of silence: after a short silence, and again when the stream
        has stalled."""
        self.on_flow: Callable[[float], None] | None = None
        """Called with the duration in seconds when examples arrive after a stall."""
        self.is_over: Callable[[], bool] = lambda: False
        """Polled while waiting; True ends the reading."""
        self._stopped = threading.Event()

    def blocks(self, size: int) -> Dataset[Records]:
        """Returns blocks of at most `size` examples as they arrive; a partial block waits `linger_seconds` for more."""
        return _Blocks(self, whole_number("blocks: size", size, at_least=1))

    def stop(self) -> None:
        """Ends all readings, including waiting ones. Thread-safe."""
        self._stopped.set()

    @property
    def has_stopped(self) -> bool:
        """Whether readings are to end."""
        return self._stopped.is_set() or self.is_over()

    def wait(self, seconds: float) -> None:
        """Waits for this time, or until `stop` is called."""
        self._stopped.wait(seconds)

    def read(self, size: int, position: bytes | None) -> StreamReading:
        """Starts to read blocks of at most `size` examples, after a position.

        Raises:
            InvalidArgumentError: the position belongs to another stream.
            NotFoundError, UnavailableError: the topic does not exist, or no broker responds.
        """
        self.was_read = True
        behind = StreamPosition() if position is None else StreamPosition.from_bytes(position, stream=self.name)
        reached = behind.of_partitions(self._num_partitions())
        source = self._source(reached)
        admission = Admission(source.name, self.config, self.counts, reached)
        return StreamReading(self, source, admission, size=size, clock=self._clock, examples=behind.examples)

    def _num_partitions(self) -> int:
        if self._topic is None:
            return self.config.partitions or 1
        count = num_partitions(self._topic, self.config.kafka)
        if self.config.partitions not in {None, count}:
            raise InvalidArgumentError(
                f"stream '{self.place}': the topic has {count} partitions, expected {self.config.partitions}"
            )
        return count

    def _source(self, reached: list[Reached]) -> ExampleSource:
        if self._topic is None:
            return FileExamples(self.place, reached)
        return TopicExamples(self._topic, reached, self.bad, self.config.kafka)


class _Blocks(Dataset[Records]):
    """The examples in blocks, whose boundaries depend on arrival times."""

    def __init__(self, stream: ExampleStream, size: int) -> None:
        self._stream = stream
        self._size = size

    @property
    def is_replayable(self) -> bool:
        return False

    def read(self, position: bytes | None = None) -> StreamReading:
        return self._stream.read(self._size, position)

    def share(self, index: int, count: int) -> Dataset[Records]:
        if count > 1:
            raise InvalidArgumentError(
                f"{self!r}: one process reads a stream, and this is number {index} of {count}; start one"
            )
        return self

    def __repr__(self) -> str:
        return f"ExampleStream({self._stream.place!r}).blocks({self._size})"


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
        self._position = self._encoded_position((0, 0))
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
        self._position = self._encoded_position((min(times), newest))
        is_full = len(times) == self._size
        self._stream.lag_seconds = max(0.0, self._clock.now() - newest / 1000) if is_full else 0.0
        self._look()

    def _encoded_position(self, known_ms: tuple[int, int]) -> bytes:
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


_log = logging.getLogger(__name__)

_SECONDS_BETWEEN_METRICS = 1.0


class StreamHook(Hook):
    """Hook that reports the progress of a session in its stream, and completes pending work while it is silent.

    Pending reads of the stream are ended with the session.

    Args:
        stream: Stream that the session reads.
        bar: Progress bar; None: metrics and the log only.
        task: Name of the task, for messages.
        clock: Measures the time between metrics.
    """

    def __init__(
        self, stream: ExampleStream, bar: Progress | None = None, *, task: str = "task", clock: Clock | None = None
    ) -> None:
        self._stream = stream
        self._bar = bar
        self._task = task
        self._clock = SystemClock() if clock is None else clock
        self._emitted = 0.0
        self._session: HookedSession | None = None

    def after_create_session(self, session: HookedSession) -> None:
        """Registers the callbacks of the stream."""
        self._session = session
        self._stream.is_over = lambda: session.stop_requested
        self._stream.on_silence = self._silence
        self._stream.on_flow = lambda seconds: self._tell(f"stream: resumed after {seconds:.0f} s")

    def before_run(self, context: StepContext) -> None:  # noqa: ARG002 - a hook's signature
        """Checks that the task reads the stream.

        Raises:
            FailedPreconditionError: the task does not read the stream.
        """
        if not self._stream.was_read:
            raise FailedPreconditionError(
                f"{self._task}: the run was given the stream '{self._stream.place}', but input_fn did not read it;"
                ' return self.ctx.examples(batch_size).parse(...) for mode "train", or omit the stream'
            )

    def after_run(self, context: StepContext) -> None:  # noqa: ARG002 - a hook's signature
        """Updates the progress bar, and emits metrics periodically."""
        if self._bar is not None:
            self._bar.update(0, **self._fields())
        if self._clock.monotonic() - self._emitted >= _SECONDS_BETWEEN_METRICS:
            self._emit()

    def end(self, session: HookedSession) -> None:  # noqa: ARG002 - a hook's signature
        """Emits the final metrics."""
        self._emit()

    def _fields(self) -> dict[str, Any]:
        stream = self._stream
        left_out = {name: value for name, value in stream.counts.to_dict().items() if value and name != "examples"}
        return {"lag": lambda: f"{stream.lag_seconds:.1f} s ({stream.behind:,} {stream.unit})", **left_out}

    def _silence(self, seconds: float) -> None:
        """Completes work postponed to the next step, which may never come, and reports a stall."""
        session = self._session
        if session is not None:
            with session.step_lock:
                session.state.settle()
        self._emit(silent_seconds=seconds)
        if seconds >= self._stream.config.stall_seconds:
            self._tell(
                f"stream: nothing has come for {seconds:.0f} s; {self._stream.counts.examples:,} examples are trained,"
                " and their rows are out; waiting for more"
            )

    def _tell(self, text: str) -> None:
        if self._bar is None:
            _log.info("%s", text)
        else:
            self._bar.write(text)

    def _emit(self, silent_seconds: float = 0.0) -> None:
        self._emitted = self._clock.monotonic()
        client = MetricClient("monolith.stream")
        stream = self._stream
        for name, value in stream.counts.to_dict().items():
            client.emit_store(name, value)
        client.emit_store("lag_seconds", stream.lag_seconds)
        client.emit_store(f"lag_{stream.unit}", stream.behind)
        client.emit_store("silent_seconds", silent_seconds)
