"""An online tree whose processes are killed at random times, and checks of its rows.

Whatever is killed, every event is trained once, both followers have the rows of the trainer bit for bit and lack the
rows that it removed, and the version of a follower never decreases. With servers instead of followers, every answer
satisfies the rules of `system.crash.online_answers`.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from system.crash.child import import_what_torch_puts_off
from system.crash.online_events import STEPS_BEHIND, OnlineTraffic
from system.crash.online_judgement import judge_tree
from system.crash.online_places import open_places
from system.crash.online_tree import (
    PRODUCER,
    TRAINER,
    OnlineSettings,
    OnlineTree,
)
from system.crash.online_watch import StuckError, TreeWatch
from system.crash.trial import is_inside_save

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["OnlineKill", "OnlineTrial", "run_online_trial"]

_STACK_SECONDS = 0.5
"""Within which processes have written the stacks of their threads."""
_MOST_DELAY_SECONDS = 0.4
_SHARE_IN_SAVES = 0.5
"""Share of the kills of the trainer."""
_SAVE_STEPS = 4
_DAYS = 2.0
"""Event time from the first event to the last: rows that expire after one day are evicted in between. No batch is more
than a day ahead of earlier ones, since the clock of the run would bound such times.
"""
_LEAST_CHUNKS = 6
_CHUNKS_PER_KILL = 3
"""One chunk in flight, one that is written after the kill, and one after the recovery."""
_DAY_MS = 86_400_000
_TRAINER = (
    *("--save_checkpoints_steps", str(_SAVE_STEPS), "--checkpoints_max_to_keep", "2"),
    *("--feature_evict_every_n_steps", "1", "--delta_log_dense_interval_secs", "0.5"),
)


@dataclass(slots=True, kw_only=True)
class OnlineKill:
    """A kill, and its recovery."""

    role: str
    inside_save: bool
    recovery_seconds: float = 0.0
    """From the kill until both readers have a chunk that was written after it, and servers are ready."""
    following_seconds: float = 0.0
    """After the recovery, from the write of the next chunk until both readers have it."""


@dataclass(slots=True)
class OnlineTrial:
    """One tree, and its results."""

    seed: int
    transport: str
    kills: list[OnlineKill] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    num_events: int = 0
    num_evicted: int = 0
    """Number of ids that the trainer had removed in the end."""
    asked: dict[str, int] = field(default_factory=dict)
    """Number of requests of clients to servers, see `AskedCounts`."""

    @property
    def is_good(self) -> bool:
        """Whether all checks passed."""
        return not self.problems


def run_online_trial(
    *,
    num_kills: int,
    seed: int,
    folder: Path,
    kafka: bool = False,
    serve: bool = False,
    longest_seconds: float = 120.0,
) -> OnlineTrial:
    """Runs a tree with `num_kills` kills to the end of its events, and checks it. The caller must have one thread.

    Args:
        num_kills: Number of kills, one after another; every process is killed once per round, in random order.
        seed: Seed of the events, and of the order and times of kills.
        folder: Folder of the tree; empty.
        kafka: Whether processes communicate by topics of Kafka's mock, whose broker is not killed; else by files.
        serve: Whether two servers follow the trainer, with clients that query them continuously; else two followers.
        longest_seconds: Time without progress after which the tree counts as hung, which is a problem.
    """
    trial = OnlineTrial(seed, "kafka" if kafka else "files")
    import_what_torch_puts_off()
    traffic = _traffic(seed, num_chunks=max(_LEAST_CHUNKS, _CHUNKS_PER_KILL * num_kills + 2))
    trial.num_events = traffic.num_events
    with open_places(folder, traffic.partitions, kafka=kafka) as places:
        tree = OnlineTree(traffic, places, folder, OnlineSettings(trainer=_TRAINER, serve=serve))
        try:
            _Course(trial, tree, num_kills, longest_seconds).run()
        finally:
            tree.close()
    return trial


def _traffic(seed: int, num_chunks: int) -> OnlineTraffic:
    """Returns traffic of some days, the last of which is not over."""
    events = num_chunks * (OnlineTraffic.chunk_events + OnlineTraffic.partitions)
    step_ms = _DAYS * _DAY_MS / (events + OnlineTraffic.window_steps + STEPS_BEHIND)
    start_ms = int(1000 * time.time() - (_DAYS + 0.5) * _DAY_MS)
    return OnlineTraffic(seed=seed, start_ms=start_ms, step_ms=step_ms, num_chunks=num_chunks)


class _Course:
    def __init__(self, trial: OnlineTrial, tree: OnlineTree, num_kills: int, longest_seconds: float) -> None:
        self._trial = trial
        self._tree = tree
        self._watch = TreeWatch(tree, longest_seconds)
        self._num_kills = num_kills
        self._draw = random.Random(f"{trial.seed} kills")  # noqa: S311 - repeatable times, not secrets

    def run(self) -> None:
        """Injects all kills, processes the rest of the events, stops the tree, and checks it."""
        tree, watch = self._tree, self._watch
        try:
            tree.allow(1)
            watch.start()
            watch.wait(lambda: watch.chunks() >= 1, "the first chunk")
            for number, role in enumerate(self._victims()):
                self._befall(role, chunk=_CHUNKS_PER_KILL * number + 1)
            watch.end()
        except StuckError as stuck:
            self._trial.problems.append(str(stuck))
            tree.dump_stacks()
            time.sleep(_STACK_SECONDS)
            return
        judge_tree(self._trial, tree)

    def _victims(self) -> list[str]:
        """Returns every process once per round, each round in another order."""
        found: list[str] = []
        while len(found) < self._num_kills:
            found += self._draw.sample(self._tree.roles, len(self._tree.roles))
        return found[: self._num_kills]

    def _befall(self, role: str, *, chunk: int) -> None:
        """Kills a process while a chunk is in flight, and waits for the next one, which is written after the kill."""
        tree = self._tree
        if role == PRODUCER:  # while it has work
            time.sleep(self._draw.uniform(0.0, 0.01))
            tree.allow(chunk + 1)
            time.sleep(self._draw.uniform(0.0, 0.05))
        else:
            tree.allow(chunk + 1)
            time.sleep(self._draw.uniform(0.0, _MOST_DELAY_SECONDS))
        if role == TRAINER and self._draw.random() < _SHARE_IN_SAVES:
            self._await_save(chunk)
        kill = OnlineKill(role=role, inside_save=role == TRAINER and is_inside_save(tree.model_dir))
        self._watch.look()
        begun = time.monotonic()
        tree.kill(role)
        tree.start(role)
        tree.allow(chunk + 2)
        self._watch.wait(
            lambda: self._watch.chunks() > chunk + 1 and self._watch.are_ready(),
            f"chunk {chunk + 1}, written after the kill of {role},",
        )
        recovered = time.monotonic()
        tree.allow(chunk + 3)
        self._watch.wait(lambda: self._watch.chunks() > chunk + 2, f"a chunk after the recovery of {role}")
        kill.recovery_seconds = round(recovered - begun, 3)
        kill.following_seconds = round(time.monotonic() - recovered, 3)
        self._trial.kills.append(kill)

    def _await_save(self, chunk: int) -> None:
        """Returns inside a save, if one happens before the end of the chunk."""
        model_dir = self._tree.model_dir
        self._watch.wait(lambda: is_inside_save(model_dir) or self._watch.chunks() > chunk, "a save")
