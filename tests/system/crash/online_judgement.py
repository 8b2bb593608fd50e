"""Checks of an online tree after all of its processes have ended."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from monolith.checkpoint import load
from system.crash.child import Child
from system.crash.online_answers import (
    AskedCounts,
    answers_by_life,
    dense_ahead_in_log,
    differing_rows,
    failures,
    read_asked,
    rows_too_old,
    torn_rows,
    versions_going_back,
    weights_ahead,
)
from system.crash.online_events import NUM_ITEMS
from system.crash.online_follower import rows_of, slot_keys
from system.crash.online_history import read_history
from system.crash.stream_task import StreamCountingTask

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from system.crash.child import Tell
    from system.crash.online_events import OnlineTraffic
    from system.crash.online_tree import OnlineTree
    from system.crash.online_trial import OnlineTrial

__all__ = ["Passing", "judge_tree", "miscounts", "row_differences", "versions_that_go_back", "written_lines"]

_MOST = 5
"""Maximum number of reported problems of one kind."""
_EXPIRE_SECONDS = 86_400


def judge_tree(trial: OnlineTrial, tree: OnlineTree) -> None:
    """Checks a tree and adds the problems to the trial."""
    child = Child(partial(_look, tree))
    try:
        child.wait()
        found = child.told()["result"]
    finally:
        child.close()
    trial.problems += found["problems"]
    trial.num_evicted = found["evicted"]
    trial.asked = found["asked"]


def _look(tree: OnlineTree, tell: Tell) -> dict[str, Any]:
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
