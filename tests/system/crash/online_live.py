"""An undisturbed online tree in real time: the delay until both readers have the events and preferences of users."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from system.crash.online_events import OnlineTraffic
from system.crash.online_places import open_places
from system.crash.online_tree import PRODUCER, OnlineSettings, OnlineTree, TreeWatch
from system.crash.processes import import_what_torch_puts_off

_START_SECONDS = 0.5
"""From the time at which all readers are ready to the first event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveScenario:
    """The traffic, and its rate."""

    seed: int = 0
    events_per_second: float = 2000.0
    """Impressions and actions together, approximately."""
    num_chunks: int = 20
    chunk_events: int = 600
    window_seconds: float = 1.0
    flip: int | None = None
    """First chunk in which users like the other half of the items; the tree has all earlier chunks before it begins."""
    batch_size: int = 512
    kafka: bool = False
    serve: bool = False
    """Whether two servers follow the trainer and are queried; else two followers."""
    watched: int = 1
    """Servers are queried for every `watched`-th event."""

    def traffic(self) -> OnlineTraffic:
        """Returns traffic that begins soon."""
        step_ms = 1000 * (1 + OnlineTraffic.share_of_clicks) / self.events_per_second
        return OnlineTraffic(
            seed=self.seed,
            start_ms=int(1000 * (time.time() + _START_SECONDS)),
            step_ms=step_ms,
            num_chunks=self.num_chunks,
            chunk_events=self.chunk_events,
            window_steps=round(1000 * self.window_seconds / step_ms),
            flip=self.flip,
        )


@dataclass(frozen=True, slots=True)
class LiveTree:
    """Observations of one tree."""

    traffic: OnlineTraffic
    found: dict[str, dict[str, Any]]
    """Records of each reader; see `system.crash.online_follower`."""
    watched: int = 1
    """Every `watched`-th event was checked."""

    def delays(self, *, clicked: bool, chunks: range) -> list[float]:
        """Returns sorted delays of events in seconds, from the action, or else the end of the window, to both readers.

        Args:
            clicked: Events with an action, or those without.
            chunks: Chunks whose events count. When events end, no later event closes the last windows.
        """
        size = self.traffic.events_per_chunk
        events = [
            event
            for event in range(chunks.start * size, chunks.stop * size)
            if event % self.watched == 0
            and self.traffic.is_clicked(event) == clicked
            and not self.traffic.is_mark(event)
        ]
        came = [max(each["came"][event] for each in self.found.values()) for event in events]
        return sorted(at - self.traffic.known_ms(event) / 1000 for at, event in zip(came, events, strict=True))


def run_live_tree(scenario: LiveScenario, folder: Path, *, longest_seconds: float = 120.0) -> LiveTree:
    """Runs a tree to the end of its events. The caller must have one thread.

    Args:
        scenario: The traffic.
        folder: Folder of the tree; empty.
        longest_seconds: Time without progress after which the tree counts as hung.

    Raises:
        StuckError: it hangs, or one of its processes has failed.
    """
    import_what_torch_puts_off()
    trainer = ("--params_override", json.dumps({"batch_size": scenario.batch_size}))
    with open_places(folder, OnlineTraffic.partitions, kafka=scenario.kafka) as places:
        settings = OnlineSettings(is_live=True, trainer=trainer, serve=scenario.serve, watched=scenario.watched)
        tree = OnlineTree(scenario.traffic(), places, folder, settings)
        watch = TreeWatch(tree, longest_seconds)
        try:
            watch.start_readers()
            traffic = tree.traffic = scenario.traffic()  # the same events, starting now
            for role in tree.helpers:
                tree.start(role)  # restarted with the times of the events
            tree.allow(traffic.num_chunks if scenario.flip is None else scenario.flip)
            tree.start(PRODUCER)
            watch.wait(lambda: watch.chunks() >= (scenario.flip or 0), "the chunks before the flip")
            watch.end()
            return LiveTree(traffic, {role: tree.found(role) for role in tree.readers}, scenario.watched)
        finally:
            tree.close()
