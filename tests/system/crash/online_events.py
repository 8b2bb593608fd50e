"""The events of users in a disturbed online tree, and the expected training result.

Impressions and actions are in the order of their times, and are divided into chunks. Each chunk ends with a *mark* in
every partition: an impression that is clicked immediately, so that a reader with the rows of all marks has seen the
chunk.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

from monolith.online.joiner import action_record, impression_record
from system.crash.stream_task import counted_sample

EventKind = Literal["impressions", "actions"]

NUM_ITEMS = 10
STEPS_BEHIND = 2
"""Steps from the close of the last window to the last marks."""
_CLICK = 1


class Sent(NamedTuple):
    """A record that the producer writes."""

    time_ms: int
    kind: EventKind
    partition: int
    request: bytes
    record: bytes


class _Shown(NamedTuple):
    time_ms: int
    item: int
    clicked_ms: int | None


@dataclass(frozen=True)
class OnlineTraffic:
    """Events of some partitions, determined by the fields.

    Args:
        seed: Seed of items and clicks.
        start_ms: Time of the first impression.
        step_ms: Milliseconds from one impression to the next.
        num_chunks: Chunks, the last of which closes all windows.
        chunk_events: Impressions of a chunk, without its marks.
        partitions: Number of partitions; events are assigned by their request.
        window_steps: The window of the join, in steps.
        flip: First chunk in which users like the other half of the items; None: they like all items alike.
    """

    seed: int
    start_ms: int
    step_ms: float
    num_chunks: int
    chunk_events: int = 40
    partitions: int = 4
    window_steps: int = 8
    flip: int | None = None
    share_of_clicks: ClassVar[float] = 0.5
    """Approximate share of clicks among impressions that are not marks."""

    @property
    def window_ms(self) -> int:
        """Window within which an action counts."""
        return round(self.window_steps * self.step_ms)

    @property
    def events_per_chunk(self) -> int:
        """Number of events of a chunk, including marks."""
        return self.chunk_events + self.partitions

    @property
    def num_events(self) -> int:
        """Number of impressions; each has its own request, and the number of its event."""
        return self.num_chunks * self.events_per_chunk

    def marks(self, chunk: int) -> range:
        """Returns the events that end a chunk, one for each partition."""
        end = (chunk + 1) * self.events_per_chunk
        return range(end - self.partitions, end)

    def known_ms(self, event: int) -> int:
        """Returns when the example of an event is complete: at its action, or else at the close of its window."""
        shown = self._shown[event]
        return shown.time_ms + self.window_ms if shown.clicked_ms is None else shown.clicked_ms

    def is_mark(self, event: int) -> bool:
        """Returns whether an event ends a chunk."""
        return event % self.events_per_chunk >= self.chunk_events

    def item(self, event: int) -> int:
        """Returns the item shown."""
        return self._shown[event].item

    def is_clicked(self, event: int) -> bool:
        """Returns whether the event has an action."""
        return self._shown[event].clicked_ms is not None

    def time_ms(self, event: int) -> int:
        """Returns the time of the impression."""
        return self._shown[event].time_ms

    def clicks(self) -> Counter[int]:
        """Returns item -> number of clicks."""
        return Counter(each.item for each in self._shown if each.clicked_ms is not None)

    def views(self) -> Counter[int]:
        """Returns item -> number of impressions."""
        return Counter(each.item for each in self._shown)

    @cached_property
    def chunks(self) -> list[list[Sent]]:
        """Returns the records of each chunk for the producer; all of them in the order of time."""
        ends = [self._shown[self.marks(chunk)[-1]].time_ms for chunk in range(self.num_chunks)]
        records: list[list[Sent]] = [[] for _ in ends]
        chunk = 0
        for each in sorted(self._records()):
            while each.time_ms > ends[chunk]:
                chunk += 1
            records[chunk].append(each)
        return records

    def _records(self) -> list[Sent]:
        found = []
        for event, shown in enumerate(self._shown):
            request = b"request-%d" % event
            partition = event % self.partitions
            sample = counted_sample(event, shown.item)
            record = impression_record(request, shown.item, time_ms=shown.time_ms, sample=sample)
            found.append(Sent(shown.time_ms, "impressions", partition, request, record))
            if shown.clicked_ms is not None:
                action = action_record(request, shown.item, time_ms=shown.clicked_ms, actions=[_CLICK])
                found.append(Sent(shown.clicked_ms, "actions", partition, request, action))
        return found

    @cached_property
    def _shown(self) -> list[_Shown]:
        draw = random.Random(f"{self.seed} events")  # noqa: S311 - data to repeat, not secrets
        found = []
        for event in range(self.num_events):
            chunk, place = divmod(event, self.events_per_chunk)
            is_mark = place >= self.chunk_events
            # The last marks come after every earlier window has closed.
            ahead = self.window_steps + STEPS_BEHIND if is_mark and chunk == self.num_chunks - 1 else 0
            last = (chunk + 1) * self.events_per_chunk - 1  # all marks of a chunk have one time, its last
            time_ms = self.start_ms + round(((last if is_mark else event) + ahead) * self.step_ms)
            item = draw.randrange(NUM_ITEMS)
            delay = round(draw.uniform(0.0, self.window_steps - 1) * self.step_ms)
            clicks = draw.random() < self._share(item, chunk)
            clicked_ms = time_ms if is_mark else (time_ms + delay if clicks else None)
            found.append(_Shown(time_ms, item, clicked_ms))
        return found

    def _share(self, item: int, chunk: int) -> float:
        """Returns the probability of a click."""
        if self.flip is None:
            return self.share_of_clicks
        likes_first = chunk < self.flip
        return 0.9 if (item < NUM_ITEMS // 2) == likes_first else 0.1
