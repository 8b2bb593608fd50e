"""An online tree whose processes are killed at random times, and checks of its rows.

Whatever is killed, every event is trained once, both followers have the rows of the trainer bit for bit and lack the
rows that it removed, and the version of a follower never decreases. With servers instead of followers, every answer
satisfies the rules of `system.crash.online_answers`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from monolith.checkpoint import load
from system.crash.online_answers import (
    AskedCounts,
    answers_by_life,
    dense_ahead_in_log,
    differing_rows,
    failures,
    read_asked,
    read_history,
    rows_too_old,
    torn_rows,
    versions_going_back,
    weights_ahead,
)
from system.crash.online_events import NUM_ITEMS, STEPS_BEHIND, OnlineTraffic
from system.crash.online_follower import rows_of, slot_keys
from system.crash.online_places import open_places
from system.crash.online_tree import PRODUCER, TRAINER, OnlineSettings, OnlineTree, TreeWatch
from system.crash.processes import Tell, import_what_torch_puts_off, result_of
from system.crash.stream_task import StreamCountingTask
from system.crash.trial import Fault, Topology, Trial, draw_for, is_inside_save, run_trial

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
_MOST = 5
"""Maximum number of reported problems of one kind."""
_EXPIRE_SECONDS = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineScenario:
    """Setup of a tree."""

    kafka: bool = False
    """Whether processes communicate by topics of Kafka's mock, whose broker is not killed; else by files."""
    serve: bool = False
    """Whether two servers follow the trainer, with clients that query them continuously; else two followers."""


def run_online_trial(
    scenario: OnlineScenario, *, num_kills: int, seed: int, folder: Path, longest_seconds: float = 120.0
) -> Trial[OnlineScenario]:
    """Runs a tree with `num_kills` kills to the end of its events, and checks it. The caller must have one thread.

    A fault has the detail ``following_seconds``: after the recovery, the time from the write of the next chunk until
    both readers have it. Facts of the trial:

    - ``transport``: ``kafka`` or ``files``
    - ``events``: number of events
    - ``evicted``: number of ids that the trainer had removed in the end
    - ``asked``: number of requests of clients to servers, see `AskedCounts`

    Args:
        scenario: Setup of the tree.
        num_kills: Number of kills, one after another; every process is killed once per round, in random order.
        seed: Seed of the events, and of the order and times of kills.
        folder: Folder of the tree; empty.
        longest_seconds: Time without progress after which the tree counts as hung, which is a problem.
    """
    import_what_torch_puts_off()
    traffic = _traffic(seed, num_chunks=max(_LEAST_CHUNKS, _CHUNKS_PER_KILL * num_kills + 2))
    transport = "kafka" if scenario.kafka else "files"
    facts = {"transport": transport, "events": traffic.num_events, "evicted": 0, "asked": {}}
    trial = Trial(scenario, seed, facts=facts)
    with open_places(folder, traffic.partitions, kafka=scenario.kafka) as places:
        tree = OnlineTree(traffic, places, folder, OnlineSettings(trainer=_TRAINER, serve=scenario.serve))
        return run_trial(_Tree(trial, tree, longest_seconds), trial, num_faults=num_kills)


def _traffic(seed: int, num_chunks: int) -> OnlineTraffic:
    """Returns traffic of some days, the last of which is not over."""
    events = num_chunks * (OnlineTraffic.chunk_events + OnlineTraffic.partitions)
    step_ms = _DAYS * _DAY_MS / (events + OnlineTraffic.window_steps + STEPS_BEHIND)
    start_ms = int(1000 * time.time() - (_DAYS + 0.5) * _DAY_MS)
    return OnlineTraffic(seed=seed, start_ms=start_ms, step_ms=step_ms, num_chunks=num_chunks)


class _Tree(Topology[OnlineScenario]):
    def __init__(self, trial: Trial[OnlineScenario], tree: OnlineTree, longest_seconds: float) -> None:
        super().__init__(trial, draw_for(trial.seed, "kills"), longest_seconds)
        self._tree = tree
        self._watch = TreeWatch(tree, longest_seconds)
        self._round: list[str] = []
        """Processes that are killed next: every process once per round, each round in another order."""

    def look(self) -> None:
        """Checks that no process has ended by itself; see `TreeWatch.look`."""
        self._watch.look()

    def progress(self) -> object:
        """Returns the reports of all processes."""
        return self._watch.progress()

    def start(self) -> None:
        """Starts all processes, and waits for the first chunk."""
        self._tree.allow(1)
        self._watch.start()
        self.wait(lambda: self._watch.chunks() >= 1, "the first chunk")

    def due(self, number: int) -> Fault:
        """Lets the producer write a chunk, and waits until it is in flight, or for a save."""
        tree = self._tree
        if not self._round:
            self._round = self._draw.sample(tree.roles, len(tree.roles))
        role = self._round.pop(0)
        chunk = _CHUNKS_PER_KILL * number + 1
        if role == PRODUCER:  # while it has work
            time.sleep(self._draw.uniform(0.0, 0.01))
            tree.allow(chunk + 1)
            time.sleep(self._draw.uniform(0.0, 0.05))
        else:
            tree.allow(chunk + 1)
            time.sleep(self._draw.uniform(0.0, _MOST_DELAY_SECONDS))
        if role == TRAINER and self._draw.random() < _SHARE_IN_SAVES:
            # Inside a save, if one happens before the end of the chunk.
            self.wait(lambda: is_inside_save(tree.model_dir) or self._watch.chunks() > chunk, "a save")
        inside = role == TRAINER and is_inside_save(tree.model_dir)
        self.look()
        return Fault(kind="kill", role=role, inside_save=inside)

    def inject(self, fault: Fault) -> None:
        """Kills a process, and starts it again."""
        self._tree.kill(fault.role)
        self._tree.start(fault.role)

    def recover(self, fault: Fault) -> float:
        """Waits until both readers have a chunk that was written after the kill, and servers are ready."""
        chunk = _CHUNKS_PER_KILL * len(self._trial.faults) - 1
        self._tree.allow(chunk + 1)
        self.wait(
            lambda: self._watch.chunks() > chunk and self._watch.are_ready(),
            f"chunk {chunk}, written after the kill of {fault.role},",
        )
        recovered = time.monotonic()
        self._tree.allow(chunk + 2)
        self.wait(lambda: self._watch.chunks() > chunk + 1, f"a chunk after the recovery of {fault.role}")
        fault.details["following_seconds"] = round(time.monotonic() - recovered, 3)
        return recovered

    def finish(self) -> None:
        """Processes the rest of the events, and stops one process after another."""
        self._watch.end()

    def judge(self) -> list[str]:
        """Checks the tree in a process of its own."""
        found = result_of(partial(_judged, self._tree))
        self._trial.facts |= {name: found[name] for name in ("evicted", "asked")}
        problems: list[str] = found["problems"]
        return problems

    def dump(self) -> None:
        """Makes every process write the stacks of its threads to its log."""
        self._tree.dump_stacks()
        time.sleep(_STACK_SECONDS)

    def close(self) -> None:
        """Kills running processes."""
        self._tree.close()


def _judged(tree: OnlineTree, _: Tell) -> dict[str, Any]:
    """Checks in a process of its own: the parent starts no threads."""
    torch.set_num_threads(1)
    task = StreamCountingTask()
    load(task.make_model(), str(tree.model_dir))
    trained = rows_of(task.emb.store)
    passing = Passing.of(trained, tree.traffic)
    problems = [*miscounts(task, tree.traffic), *passing.problems(tree.traffic)]
    asked: dict[str, int] = {}
    if tree.settings.serve:
        asked = _judge_servers(tree, task, problems)
    else:
        _judge_followers(tree, trained, passing, problems)
    return {"problems": problems, "evicted": len(passing.gone), "asked": asked}


def _judge_followers(tree: OnlineTree, trained: dict[str, str], passing: Passing, problems: list[str]) -> None:
    passed: set[int | None] = set()
    for role in tree.readers:
        problems += [f"{role}: {each}" for each in row_differences(trained, tree.found(role)["rows"])]
        for path in sorted(tree.folder.glob(f"{role}-*.versions")):
            lines = written_lines(path)
            problems += [f"{path.stem}: {each}" for each in versions_that_go_back(lines)]
            passed.update(each["oldest"] for each in lines)
    if not passed & passing.gone:
        problems.append("no follower has had a row that expired: nothing is known of what is removed")


def _judge_servers(tree: OnlineTree, task: StreamCountingTask, problems: list[str]) -> dict[str, int]:
    """Adds the problems of the answers; returns their numbers."""
    asked = read_asked(tree.asked)
    bases = tree.found("bases").values()
    history = read_history(tree.places.open_log(), tree.export, tree.traffic.num_events, bases)
    problems += islice(failures(asked), _MOST)
    problems += islice(dense_ahead_in_log(history), _MOST)
    for life in answers_by_life(asked, tree.lives):
        for found in (
            versions_going_back(life),
            torn_rows(life),
            rows_too_old(life, history),
            weights_ahead(life, history),
        ):
            problems += islice(found, _MOST)
    trained = _trained_rows(task, tree.traffic)
    for role in tree.readers:
        problems += [f"{role}: {each}" for each in differing_rows(tree.found(role)["last"], trained)]
    return asdict(AskedCounts.of(asked))


def _trained_rows(task: StreamCountingTask, traffic: OnlineTraffic) -> dict[str, dict[int, Any]]:
    """Returns the rows of the trainer as servers show them."""
    events, items = torch.arange(traffic.num_events), torch.arange(NUM_ITEMS)
    rows = {slot: task.emb.lookup(slot, events)[:, 0].tolist() for slot in ("event", "passing")}
    rows["whole"] = task.emb.lookup("whole", items).tolist()
    return {slot: dict(enumerate(values)) for slot, values in rows.items()}


def miscounts(task: StreamCountingTask, traffic: OnlineTraffic) -> Iterator[str]:
    """Yields the differences between the trained values and a plain count of the events."""
    expected = {
        "event": dict.fromkeys(range(traffic.num_events), 1),
        "item": traffic.views(),
        "liked": traffic.clicks(),
    }
    for slot, counts in expected.items():
        ids = range(traffic.num_events if slot == "event" else NUM_ITEMS)
        rows = task.emb.lookup(slot, torch.tensor(list(ids))).reshape(-1).tolist()
        wrong = [(each, row) for each, row in zip(ids, rows, strict=True) if row != counts.get(each, 0)]
        for each, row in wrong[:_MOST]:
            yield f"{slot} {each}: {counts.get(each, 0)} in the data, {row:g} trained ({len(wrong)} are wrong)"
    total = task.total.weight.item()
    if total != traffic.num_events:
        yield f"the dense weight counts {total:g} examples of {traffic.num_events}"


def row_differences(trained: dict[str, str], followed: dict[str, str]) -> Iterator[str]:
    """Yields the differences between the rows of a follower and the serving rows of the trainer."""
    for key in sorted(trained.keys() - followed.keys())[:_MOST]:
        yield f"row {key} of the trainer is missing"
    for key in sorted(followed.keys() - trained.keys())[:_MOST]:
        yield f"row {key} exists, but not at the trainer"
    both = trained.keys() & followed.keys()
    for key in sorted(key for key in both if trained[key] != followed[key])[:_MOST]:
        yield f"row {key} is {followed[key]}, and the trainer's {trained[key]}"


def written_lines(path: Path) -> list[dict[str, Any]]:
    """Reads the records of one incarnation of a follower; a killed one may have stopped inside a line."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def versions_that_go_back(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yields lines whose version is older than that of the line before."""
    before: dict[str, int] = {}
    for number, line in enumerate(lines):
        version = line["version"]
        for part, last in before.items():
            if version.get(part, -1) < last:
                yield f"line {number}: part {part!r} went back from {last} to {version.get(part)}"
        before = version


@dataclass(frozen=True, slots=True)
class Passing:
    """The events with rows in the expiring slot, and the events whose rows have expired."""

    times: dict[int, int]
    """Event -> time of its row."""
    gone: set[int]

    @classmethod
    def of(cls, rows: dict[str, str], traffic: OnlineTraffic) -> Passing:
        """Extracts them from serving rows."""
        table, keys = slot_keys("passing", range(traffic.num_events))
        found = {tuple(each.split()[:2]): int(each.split()[2]) for each in rows}
        times = {event: found[table, str(key)] for event, key in enumerate(keys.tolist()) if (table, str(key)) in found}
        return cls(times, set(range(traffic.num_events)) - times.keys())

    def problems(self, traffic: OnlineTraffic) -> Iterator[str]:
        """Yields rows that should have expired, or should not. A row has the newest time of its last batch."""
        newest = max(traffic.time_ms(event) for event in range(traffic.num_events)) // 1000
        end = newest - _EXPIRE_SECONDS
        old = [event for event, seen in self.times.items() if seen < end]
        young = [event for event in self.gone if traffic.time_ms(event) // 1000 > end]
        if old:
            yield f"passing {old[:_MOST]}: expired rows still exist ({len(old)})"
        if young:
            yield f"passing {young[:_MOST]}: rows that have not expired are missing ({len(young)})"
