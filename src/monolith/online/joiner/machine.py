"""Decision logic of the joiner: events and watermarks in, examples out. No clock, no files, no threads.

The output is a function of the ordered input. An entry (`Entry`) is the state of one key: its impression, the waiting
actions, and what was emitted. It starts as EARLY (actions only) or OPEN, becomes OPEN with its impression and CLOSED
when its window closes, and is discarded `late_ms` later.
"""

from __future__ import annotations

import enum
import heapq
import struct
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from monolith.online.joiner.events import PlainEvent
    from monolith.online.joiner.rules import JoinRuleConfig


@dataclass(slots=True)
class JoinCounts:
    """Counts since the state was created. They are saved with it, so that no event is counted twice."""

    impressions: int = 0
    actions: int = 0
    positives: int = 0
    """First examples of their key that have an action."""
    negatives: int = 0
    corrections: int = 0
    """Examples whose `pre_actions` name the actions of the example that they correct."""
    sampled_out: int = 0
    """Negatives dropped by sampling."""
    duplicate_impressions: int = 0
    duplicate_actions: int = 0
    """Repeated actions of a key, and the action that stands for none; both are redundant."""
    late_impressions: int = 0
    """Impressions that arrived after their window had closed; skipped, since they may be duplicates."""
    late_actions: int = 0
    """Actions whose example had already been emitted."""
    unmatched_actions: int = 0
    """Actions without an impression within the window."""
    ahead: int = 0
    """Events skipped because their time is in the future."""
    bad: int = 0
    """Records skipped because they were unreadable."""

    def to_dict(self) -> dict[str, int]:
        """Returns the counts as plain numbers."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, int]) -> JoinCounts:
        """Reads the result of `to_dict`, possibly of an older version."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: int(value) for name, value in values.items() if name in known})

    def __add__(self, other: JoinCounts) -> JoinCounts:
        mine, others = asdict(self), asdict(other)
        return JoinCounts(**{name: value + others[name] for name, value in mine.items()})


OVERHEAD_BYTES = 400
"""Memory of an entry, its key and its timer; measured with 10^6 of them."""
_HEAD = struct.Struct("<IBqqiII")
"""Length of the key, stage, time, due, number of emitted actions or -1, number of held ones, length of the sample."""
_HELD = struct.Struct("<qi")
_ACTION = struct.Struct("<i")
_GONE = 255
"""Stage of a key that is stored elsewhere."""


class EntryStage(enum.IntEnum):
    """Stage in the lifetime of an entry."""

    EARLY = 0
    """Actions whose impression has not arrived."""
    OPEN = 1
    CLOSED = 2
    """The window has closed; the key is kept to detect late actions and duplicates."""


_STAGES = tuple(EntryStage)


class Held(NamedTuple):
    """An action that waits for its impression, or for the window to close."""

    time_ms: int
    action: int


@dataclass(slots=True)
class Entry:
    """The state of one key.

    `step` is the step in which it was last saved, 0: none; the code that saves owns that field.
    """

    stage: EntryStage
    time_ms: int
    """Time of the impression; without one, of the first action."""
    due_ms: int
    """Watermark at which the entry is closed or discarded."""
    sample: bytes = b""
    out: tuple[int, ...] | None = None
    """Actions of the last emitted example; None: none was emitted."""
    held: tuple[Held, ...] = ()
    step: int = 0


def pack_entries(entries: Iterable[tuple[bytes, Entry]], gone: Iterable[bytes] = ()) -> bytes:
    """Encodes keys with their entries, and keys that are stored elsewhere from now on."""
    parts: list[bytes] = []
    append, head = parts.append, _HEAD.pack
    for key, entry in entries:
        out, held, sample = entry.out, entry.held, entry.sample
        num_out = -1 if out is None else len(out)
        append(head(len(key), entry.stage, entry.time_ms, entry.due_ms, num_out, len(held), len(sample)))
        append(key)
        if out:
            parts += map(_ACTION.pack, out)
        for event in held:
            append(_HELD.pack(*event))
        append(sample)
    for key in gone:
        parts += (head(len(key), _GONE, 0, 0, -1, 0, 0), key)
    return b"".join(parts)


def unpack_entries(data: bytes, *, step: int = 0) -> Iterator[tuple[bytes, Entry | None]]:
    """Decodes the output of `pack_entries`, as of a step; None for a key that is stored elsewhere.

    Raises:
        ValueError: the bytes are truncated.
    """
    at = 0
    while at < len(data):
        try:
            key_bytes, stage, time_ms, due_ms, num_out, num_held, sample_bytes = _HEAD.unpack_from(data, at)
        except struct.error as error:
            raise ValueError(f"entries end at byte {len(data)} inside the head of one") from error
        begin_out = at + _HEAD.size + key_bytes
        begin_held = begin_out + max(0, num_out) * _ACTION.size
        begin_sample = begin_held + num_held * _HELD.size
        end = begin_sample + sample_bytes
        if end > len(data) or stage not in (*_STAGES, _GONE):
            raise ValueError(f"entries end at byte {len(data)}, the one at {at} of stage {stage} at {end}")
        key = data[at + _HEAD.size : begin_out]
        at = end
        if stage == _GONE:
            yield key, None
            continue
        out = None if num_out < 0 else tuple(action for (action,) in _ACTION.iter_unpack(data[begin_out:begin_held]))
        held = tuple(Held(*fields) for fields in _HELD.iter_unpack(data[begin_held:begin_sample])) if num_held else ()
        yield key, Entry(_STAGES[stage], time_ms, due_ms, data[begin_sample:end], out, held, step)


_EARLY, _OPEN, _CLOSED = EntryStage  # looked up once, not for every event


class JoinedExample(NamedTuple):
    """An emitted example."""

    key: bytes
    shown_ms: int
    """Time of the impression."""
    known_ms: int
    """Earliest time at which this could be known: that of the action, or of the close of the window."""
    sample: bytes
    actions: tuple[int, ...]
    pre_actions: tuple[int, ...]


class JoinMachine:
    """State machine that joins the events of one partition. Not thread-safe.

    An owner that stores some entries elsewhere must add them with `insert` before a call that concerns them: the
    entries of incoming keys, and those that are due. `changed` and `removed` list what it has to save.
    """

    def __init__(self, rules: JoinRuleConfig, *, counts: JoinCounts | None = None, watermark_ms: int = 0) -> None:
        self.rules = rules
        self.counts = JoinCounts() if counts is None else counts
        self.watermark_ms = watermark_ms
        """Watermark of event time, in milliseconds."""
        self.entries: dict[bytes, Entry] = {}
        self.num_bytes = 0
        """Approximate memory of the entries."""
        self.changed: dict[bytes, Entry] = {}
        """Entries added or changed since `saved`."""
        self.removed: list[int] = []
        """Steps in which entries discarded since `saved` were stored."""
        self._timers: dict[int, list[bytes]] = {}
        """Due time -> keys; some may have been postponed since."""
        self._due_times: list[int] = []
        """Heap of the due times."""
        self._num_timers = 0
        self._outgoing: list[JoinedExample] = []
        self._window_ms, self._late_ms = rules.window_ms, rules.late_ms
        self._is_fast = rules.mode == "fast_emit"
        self._corrects = rules.late_actions == "correct"
        self._keeps_samples = rules.keeps_samples
        self._nothing = () if rules.negative_action is None else (rules.negative_action,)
        self._kept_below = round(rules.negative_rate * 2**64)
        self._seed = rules.seed.to_bytes(8, "little", signed=True)

    def insert(self, key: bytes, entry: Entry) -> None:
        """Adds an entry that was saved before."""
        self.entries[key] = entry
        self.num_bytes += OVERHEAD_BYTES + len(entry.sample) + len(key)
        self._set_timer(key, entry.due_ms)

    def evict(self, keys: Iterable[bytes]) -> None:
        """Drops entries that are stored elsewhere from now on."""
        for key in keys:
            self._drop(key)
        if self._num_timers > 2 * len(self.entries):
            # Rebuild the timers: those of dropped entries would retain the memory that is to be freed here.
            self._timers, self._due_times, self._num_timers = {}, [], 0
            for key, entry in self.entries.items():
                self._set_timer(key, entry.due_ms)

    def saved(self) -> None:
        """Clears `changed` and `removed` after they were saved."""
        self.changed, self.removed = {}, []

    @property
    def num_outgoing(self) -> int:
        """Number of examples that `take_outgoing` would return."""
        return len(self._outgoing)

    def take_outgoing(self) -> list[JoinedExample]:
        """Returns the examples emitted since the last call."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def take(self, events: Iterable[PlainEvent]) -> None:
        """Processes events in order."""
        take_impression, take_action = self._take_impression, self._take_action
        for key, time_ms, sample, actions in events:
            if sample:
                take_impression(key, time_ms, sample)
            for action in actions:
                take_action(key, time_ms, action)

    def advance(self, watermark_ms: int) -> None:
        """Advances the watermark; closes and discards entries that are due. The watermark never decreases."""
        self.watermark_ms = max(self.watermark_ms, watermark_ms)
        due_times, entries = self._due_times, self.entries
        while due_times and due_times[0] <= self.watermark_ms:
            due_ms = heapq.heappop(due_times)
            keys = self._timers.pop(due_ms)
            self._num_timers -= len(keys)
            for key in sorted(keys):  # deterministic, whenever each was loaded
                entry = entries.get(key)
                if entry is not None and entry.due_ms == due_ms:
                    self._come_due(key, entry)

    def has_due(self, watermark_ms: int) -> bool:
        """Returns whether `advance` would find an entry that is due."""
        return bool(self._due_times) and self._due_times[0] <= watermark_ms

    def _take_impression(self, key: bytes, time_ms: int, sample: bytes) -> None:
        counts = self.counts
        counts.impressions += 1
        entry = self.entries.get(key)
        if entry is not None and entry.stage is not _EARLY:
            counts.duplicate_impressions += 1
            return
        due_ms = time_ms + self._window_ms
        if due_ms <= self.watermark_ms:
            counts.late_impressions += 1
            return
        held: tuple[Held, ...] = ()
        if entry is None:
            entry = Entry(_OPEN, time_ms, due_ms, sample)
            self._add(key, entry)
        else:
            self.num_bytes += len(sample)
            held = entry.held
            entry.stage, entry.time_ms, entry.due_ms, entry.sample, entry.held = _OPEN, time_ms, due_ms, sample, ()
            self.changed[key] = entry
            self._set_timer(key, due_ms)
        if held:
            self._join_held(key, entry, held)
        if self._is_fast and entry.out is None:
            self._emit_negative(key, entry, time_ms)

    def _join_held(self, key: bytes, entry: Entry, held: tuple[Held, ...]) -> None:
        """Emits one example with all matching actions that arrived before their impression."""
        begin, end = entry.time_ms - self._window_ms, entry.time_ms + self._window_ms
        joined = tuple(event for event in held if begin <= event.time_ms <= end)
        if joined:
            actions = tuple(dict.fromkeys(event.action for event in joined))
            self.counts.duplicate_actions += len(joined) - len(actions)
            self._emit(key, entry, max(event.time_ms for event in joined), actions)
        for event in held:
            if not self._may_belong(entry, event.time_ms):
                self.counts.unmatched_actions += 1
            elif event.time_ms > end:
                self._take_late(key, entry, event)

    def _take_action(self, key: bytes, time_ms: int, action: int) -> None:
        self.counts.actions += 1
        entry = self.entries.get(key)
        if action in self._nothing:
            self.counts.duplicate_actions += 1
        elif entry is None:
            self._take_early(key, Held(time_ms, action))
        elif entry.stage is _EARLY:
            self._hold(key, entry, Held(time_ms, action))
        elif not self._may_belong(entry, time_ms):
            self.counts.unmatched_actions += 1
        elif entry.out is not None and action in entry.out:
            self.counts.duplicate_actions += 1
        elif (
            entry.stage is _OPEN and time_ms <= entry.time_ms + self._window_ms and (entry.out is None or self._is_fast)
        ):
            self._emit(key, entry, time_ms, (action,))
        else:
            self._take_late(key, entry, Held(time_ms, action))

    def _take_early(self, key: bytes, held: Held) -> None:
        """Holds an action of an unknown key."""
        due_ms = held.time_ms + self._window_ms
        if due_ms <= self.watermark_ms:
            self.counts.unmatched_actions += 1
            return
        self._add(key, Entry(_EARLY, held.time_ms, due_ms, held=(held,)))

    def _may_belong(self, entry: Entry, time_ms: int) -> bool:
        # By time alone: an entry that is kept longer because a step is large must not change the counts.
        return -self._window_ms <= time_ms - entry.time_ms <= self._window_ms + self._late_ms

    def _take_late(self, key: bytes, entry: Entry, held: Held) -> None:
        """Handles an action whose example was emitted, or that happened after the window of a pending example."""
        if entry.out is not None and held.action in entry.out:
            self.counts.duplicate_actions += 1
            return
        self.counts.late_actions += 1
        if not self._corrects:
            return
        if entry.stage is _OPEN and held.time_ms > entry.time_ms + self._window_ms:
            # The example is emitted first, at the close of the window.
            self._hold(key, entry, held)
        else:
            self._emit(key, entry, held.time_ms, (held.action,))

    def _hold(self, key: bytes, entry: Entry, held: Held) -> None:
        if held in entry.held:
            self.counts.duplicate_actions += 1
            return
        entry.held += (held,)
        self.changed[key] = entry

    def _come_due(self, key: bytes, entry: Entry) -> None:
        if entry.stage is _EARLY:
            rest = tuple(event for event in entry.held if event.time_ms + self._window_ms > self.watermark_ms)
            self.counts.unmatched_actions += len(entry.held) - len(rest)
            if rest:
                entry.held, entry.due_ms = rest, min(rest).time_ms + self._window_ms
                self.changed[key] = entry
                self._set_timer(key, entry.due_ms)
                return
        elif entry.stage is _OPEN:
            self._close(key, entry)
            if self._late_ms:
                return
        self.changed.pop(key, None)
        self.removed.append(entry.step)
        self._drop(key)

    def _close(self, key: bytes, entry: Entry) -> None:
        if entry.out is None and not self._is_fast:
            self._emit_negative(key, entry, entry.due_ms)
        entry.stage = _CLOSED
        if entry.held:
            self._emit_held(key, entry)
        if not self._corrects:
            self._forget_sample(entry)
        self.changed[key] = entry
        if self._late_ms:
            entry.due_ms += self._late_ms
            self._set_timer(key, entry.due_ms)

    def _emit_held(self, key: bytes, entry: Entry) -> None:
        held, entry.held = entry.held, ()
        for event in held:
            if entry.out is not None and event.action in entry.out:
                self.counts.duplicate_actions += 1
            else:
                self._emit(key, entry, event.time_ms, (event.action,))

    def _emit_negative(self, key: bytes, entry: Entry, known_ms: int) -> None:
        if self._kept_below < 1 << 64:
            draw = blake2b(key, digest_size=8, key=self._seed).digest()
            if int.from_bytes(draw, "little") >= self._kept_below:
                self.counts.sampled_out += 1
                return
        self.counts.negatives += 1
        entry.out = self._nothing
        self._outgoing.append(JoinedExample(key, entry.time_ms, known_ms, entry.sample, self._nothing, ()))
        self.changed[key] = entry

    def _emit(self, key: bytes, entry: Entry, action_ms: int, new: tuple[int, ...]) -> None:
        """Emits an example with these actions and the previous ones."""
        before = entry.out
        if before is None:
            self.counts.positives += 1
            actions = new
        else:
            self.counts.corrections += 1
            actions = new if before == self._nothing else before + new
        entry.out = actions
        known_ms = max(action_ms, entry.time_ms)
        self._outgoing.append(JoinedExample(key, entry.time_ms, known_ms, entry.sample, actions, before or ()))
        if not self._keeps_samples:
            self._forget_sample(entry)
        self.changed[key] = entry

    def _forget_sample(self, entry: Entry) -> None:
        self.num_bytes -= len(entry.sample)
        entry.sample = b""

    def _add(self, key: bytes, entry: Entry) -> None:
        self.insert(key, entry)
        self.changed[key] = entry

    def _set_timer(self, key: bytes, due_ms: int) -> None:
        self._num_timers += 1
        keys = self._timers.get(due_ms)
        if keys is None:
            self._timers[due_ms] = [key]
            heapq.heappush(self._due_times, due_ms)
        else:
            keys.append(key)

    def _drop(self, key: bytes) -> None:
        entry = self.entries.pop(key)
        self.num_bytes -= OVERHEAD_BYTES + len(entry.sample) + len(key)
