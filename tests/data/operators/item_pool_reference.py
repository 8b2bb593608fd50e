"""A pool of items as dictionaries and lists: what the specification says, one item at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Item:
    id: int
    features: Any
    seen: int = 1
    drawn: int = 0


@dataclass
class ReferencePool:
    max_items: int
    start_items: int
    channels: dict[int, list[Item]] = field(default_factory=dict)

    def push(self, rows: list[tuple[int, int, Any]]) -> None:
        """Channel, id and features of each row of a batch."""
        for channel in {row[0] for row in rows}:
            queue = self.channels.setdefault(channel, [])
            known = {item.id: item for item in queue}
            new: dict[int, Item] = {}
            for _, id_, features in (row for row in rows if row[0] == channel):
                if id_ in known:
                    known[id_].seen += 1
                elif id_ in new:
                    new[id_].seen += 1
                else:
                    new[id_] = Item(id_, features)
            queue.extend(list(new.values())[-self.max_items :])
            del queue[: max(0, len(queue) - self.max_items)]

    def draw(self, channel: int, own: int, uniform: float) -> tuple[Item, int, float, float] | None:
        """The item, how often it was drawn, its age and the probability it had; of a channel, uniformly."""
        queue = self.channels.get(channel, [])
        if len(queue) <= self.start_items:
            return None
        others = [place for place, item in enumerate(queue) if item.id != own]
        if not others:
            return None
        place = others[min(int(uniform * len(others)), len(others) - 1)]
        queue[place].drawn += 1
        return queue[place], queue[place].drawn, (place + 1) / len(queue), 1 / len(others)
