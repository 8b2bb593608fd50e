"""One partition of a join: reads both inputs, joins, commits, and sends the examples. Exactly once.

A step commits, in one transaction, the undecided entries, the positions of both inputs, and the numbered examples. Only
then the examples are sent. If many entries on disk are due, further transactions follow. A reopened partition reads the
end of its output and sends the committed examples that are missing there; uncommitted input is read again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from monolith import _core
from monolith.errors import DataLossError
from monolith.online.joiner.endpoints import Arrived
from monolith.online.joiner.events import decode_events
from monolith.online.joiner.examples import pack_examples, split_examples
from monolith.online.joiner.machine import JoinCounts, JoinMachine

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from monolith.clock import Clock
    from monolith.data.records import BadRecords
    from monolith.online.joiner.endpoints import JoinInput, JoinOutput
    from monolith.online.joiner.events import PlainEvent
    from monolith.online.joiner.examples import ExampleWriter
    from monolith.online.joiner.rules import JoinRuleConfig
    from monolith.online.joiner.state import PartitionState

_MOST_PARSED_BYTES = 1 << 40
_MOST_EXAMPLES = 8192
"""Maximum number of due entries on disk that are committed and sent together; all of them may not fit in memory."""


class JoinPartition:
    """One partition of a join. Not thread-safe; owns its inputs, output and state.

    The inputs are ``impressions`` and ``actions``; the first one is processed first. A step takes at most
    `batch_records` of each.
    """

    def __init__(
        self,
        writer: ExampleWriter,
        *,
        inputs: Mapping[str, JoinInput],
        output: JoinOutput,
        state: PartitionState,
        bad: BadRecords,
        clock: Clock,
        batch_records: int = 4096,
    ) -> None:
        rules = writer.rules
        self._inputs = dict(inputs)
        self._output = output
        self._state = state
        self._writer = writer
        self._bad = bad
        self._clock = clock
        self._batch_records = batch_records
        self._lead_ms = max(rules.window_ms, 1000)
        self._max_ahead_ms = rules.max_ahead_seconds * 1000
        self._samples = _core.SampleSchema(writer.sample.value, [])
        head = state.head
        counts = JoinCounts.from_dict(head.counts)
        self.machine = JoinMachine(rules, counts=counts, watermark_ms=head.watermark_ms)
        self._watermark = Watermark.of(rules, self._inputs, now_ms=self._steady_ms(), newest=head.newest)

    @property
    def counts(self) -> JoinCounts:
        """Counts of the events by outcome."""
        return self.machine.counts

    @property
    def lag_ms(self) -> float:
        """Difference between the clock and the watermark, in milliseconds; 0 before the first event."""
        return max(0.0, self._now_ms() - self.machine.watermark_ms) if self.machine.watermark_ms else 0.0

    @property
    def num_waiting(self) -> int:
        """Number of keys in memory and on disk."""
        return len(self.machine.entries) + self._state.head.num_spilled

    def open(self) -> None:
        """Resumes from the committed state, and completes the output."""
        head = self._state.head
        self._state.load(self.machine)
        number, head.sent_place = self._output.open(head.sent_place)
        head.sent_number = max(head.sent_number, number)
        if head.sent_number > head.last_number:
            raise DataLossError(
                f"{self._output.name}: has example {head.sent_number}, but state '{self._state.path}' ends at"
                f" {head.last_number}; another joiner wrote there, or the state is an older copy"
            )
        self._send_rest()
        if self._state.has_due(self.machine, head.watermark_ms):  # the previous process was killed between two commits
            self._state.begin()
            self._close_due(head.watermark_ms)
        for name, source in self._inputs.items():
            source.open(head.offsets.get(name))

    def close(self) -> None:
        """Closes inputs, output and state; a step in progress is rolled back."""
        for source in self._inputs.values():
            source.close()
        self._output.close()
        self._state.close()

    def step(self) -> int:
        """Processes the available records and sends the emitted examples; returns the number of records."""
        arrived = {name: self._read(name, source) for name, source in self._inputs.items()}
        events = {name: self._events(name, came) for name, came in arrived.items()}
        now_ms = self._steady_ms()
        for name, came in arrived.items():
            if came.records or came.following is None or not self._inputs[name].is_at_end():
                self._watermark.hear(name, _newest(events[name]), now_ms=now_ms)
        self._take([event for batch in events.values() for event in batch], arrived, self._watermark.at(now_ms=now_ms))
        return sum(len(came.records) for came in arrived.values())

    def is_at_end(self) -> bool:
        """Returns whether both inputs were read up to their ends."""
        return all(source.is_at_end() for source in self._inputs.values())

    def drain(self) -> None:
        """Closes all windows, since the inputs have ended."""
        while last := self._state.last_due(self.machine):
            self._take([], {}, last)

    def _now_ms(self) -> float:
        return self._clock.now() * 1000

    def _steady_ms(self) -> float:
        """Returns monotonic time for idle detection: a clock step would close windows too early."""
        return self._clock.monotonic() * 1000

    def _read(self, name: str, source: JoinInput) -> Arrived:
        if self._watermark.may_wait(name, lead_ms=self._lead_ms, now_ms=self._steady_ms()):
            return Arrived((), (), None)
        return source.read(self._batch_records)

    def _events(self, name: str, came: Arrived) -> list[PlainEvent]:
        """Returns the events of records, without those that cannot be joined."""
        events, problems = decode_events(came.records)
        places = came.places
        if problems:
            for index, reason in problems:
                self.counts.bad += 1
                self._bad.add(f"{self._inputs[name].name}: offset {places[index]}: {reason}")
            bad = {index for index, _ in problems}
            places = [place for index, place in enumerate(places) if index not in bad]
        # At least the watermark: after the machine's clock is set back, all events would be ahead of it.
        latest_ms = max(self._now_ms(), self.machine.watermark_ms) + self._max_ahead_ms
        if _newest(events) > latest_ms:
            in_time = [index for index, (_, time_ms, *_) in enumerate(events) if time_ms <= latest_ms]
            self.counts.ahead += len(events) - len(in_time)
            events, places = [events[index] for index in in_time], [places[index] for index in in_time]
        return self._with_good_samples(name, events, places)

    def _with_good_samples(self, name: str, events: list[PlainEvent], places: Sequence[int | str]) -> list[PlainEvent]:
        """Drops impressions with an unreadable sample; parses all samples in one call."""
        shown = [index for index, (_, _, sample, _) in enumerate(events) if sample]
        if not shown:
            return events
        samples = [events[index][2] for index in shown]
        *_, rows, problems = self._samples.parse_list(samples, skip_bad=True, max_parsed_bytes=_MOST_PARSED_BYTES)
        if not len(rows):
            return events
        bad = sorted(shown[row] for row in rows.tolist())
        source = self._inputs[name].name
        self.counts.bad += len(bad)
        for index, problem in zip(bad, problems, strict=False):
            self._bad.add(f"{source}: offset {places[index]}: the sample: {problem}")
        if rest := bad[len(problems) :]:  # the core describes only the first ones
            self._bad.add(f"{source}: from offset {places[rest[0]]} on: {len(rest)} more unreadable samples", len(rest))
        dropped = set(bad)
        return [event for index, event in enumerate(events) if index not in dropped]

    def _take(self, events: list[PlainEvent], arrived: Mapping[str, Arrived], watermark_ms: int) -> None:
        machine, state, head = self.machine, self._state, self._state.head
        came = {name: batch.following for name, batch in arrived.items() if batch.following is not None}
        if came.items() <= head.offsets.items() and not state.has_due(machine, watermark_ms):
            return
        state.begin()
        state.insert(machine, (key for key, *_ in events))
        machine.take(events)
        head.offsets.update(came)
        head.newest = self._watermark.newest
        self._close_due(watermark_ms)

    def _close_due(self, watermark_ms: int) -> None:
        """Closes due entries in the current transaction, and in further ones if many of them are on disk.

        Entries in memory are closed in the first one: the saved steps contain no due entry.
        """
        machine, state = self.machine, self._state
        while True:
            has_more = state.bring_due(machine, watermark_ms)
            machine.advance(watermark_ms)
            if has_more and machine.num_outgoing < _MOST_EXAMPLES:
                continue
            self._commit()
            if not has_more:
                return
            state.begin()

    def _commit(self) -> None:
        machine, head = self.machine, self._state.head
        outgoing = machine.take_outgoing()
        packed = pack_examples(self._writer.numbered(outgoing, head.last_number + 1))
        head.last_number += len(outgoing)
        head.watermark_ms, head.counts = machine.watermark_ms, machine.counts.to_dict()
        self._state.commit(machine, packed)
        if packed:
            head.sent_place = self._output.append(packed)
            head.sent_number = head.last_number

    def _send_rest(self) -> None:
        """Sends committed examples that are not in the output."""
        head = self._state.head
        for packed in self._state.outbox():
            missing = [example for example in split_examples(packed) if example.number > head.sent_number]
            if missing:
                head.sent_place = self._output.append(pack_examples(missing))
                head.sent_number = missing[-1].number


def _newest(events: Sequence[PlainEvent]) -> int:
    return max([time_ms for _, time_ms, _, _ in events], default=0)


@dataclass(slots=True)
class _Input:
    newest_ms: int = 0
    heard_ms: float = 0.0
    """When it last had records or was not at its end, by a monotonic clock."""


@dataclass(slots=True)
class Watermark:
    """Minimum of the event times that the inputs have reached; idle inputs do not count. Pure: times are arguments.

    An input has reached the time before its newest event, less the allowed disorder: another event of the same time may
    follow. When all inputs are idle, the watermark advances with the clock, so that the last windows of a silent stream
    close as well.
    """

    disorder_ms: int
    idle_ms: float
    """Time without records after which an input is idle."""
    inputs: dict[str, _Input] = field(default_factory=dict)

    @classmethod
    def of(cls, rules: JoinRuleConfig, names: Iterable[str], *, now_ms: float, newest: dict[str, int]) -> Watermark:
        """Creates a watermark that starts now, by a monotonic clock; `newest` are the events of a resumed state."""
        inputs = {name: _Input(newest.get(name, 0), now_ms) for name in names}
        return cls(round(rules.disorder_seconds * 1000), rules.idle_seconds * 1000, inputs)

    @property
    def newest(self) -> dict[str, int]:
        """Time of the newest event of each input."""
        return {name: source.newest_ms for name, source in self.inputs.items()}

    def hear(self, name: str, newest_ms: int, *, now_ms: float) -> None:
        """Records that an input returned events; 0: it returned none, but is not at its end."""
        heard = self.inputs[name]
        heard.newest_ms = max(heard.newest_ms, newest_ms)
        heard.heard_ms = now_ms

    def is_idle(self, name: str, *, now_ms: float) -> bool:
        """Returns whether an input has been silent for the idle time."""
        return now_ms - self.inputs[name].heard_ms >= self.idle_ms

    def at(self, *, now_ms: float) -> int:
        """Returns the watermark; 0 while unknown."""
        waking = [source.newest_ms for name, source in self.inputs.items() if not self.is_idle(name, now_ms=now_ms)]
        if waking:
            return max(0, min(waking) - self.disorder_ms - 1)
        newest = max(source.newest_ms for source in self.inputs.values())
        if not newest:
            return 0
        silent_ms = now_ms - max(source.heard_ms for source in self.inputs.values()) - self.idle_ms
        return max(0, newest - self.disorder_ms - 1 + round(silent_ms))

    def may_wait(self, name: str, *, lead_ms: int, now_ms: float) -> bool:
        """Returns whether an input is so far ahead of another active one that reading more only fills the state."""
        mine = self.inputs[name].newest_ms
        active = [other for other in self.inputs if other != name and not self.is_idle(other, now_ms=now_ms)]
        last = min((self.inputs[other].newest_ms for other in active), default=0)
        return last > 0 and mine - last > lead_ms
