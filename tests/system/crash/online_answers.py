"""Rules for the answers of two servers, whatever was killed meanwhile; every rule is a function of the observations.

An answer names its version: no row in it may be older, no row may mix two states, and the dense weights must not be
ahead of the rows that they were trained with. Versions of one process do not decrease. A client that retries at the
other server gets an answer. `LogHistory` has the content of the log over time, with which answers are compared.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from monolith.checkpoint.tensor_file import tensors_from_bytes
from monolith.deltalog import DENSE_PART, DeltaLog, Increment, IncrementKind
from monolith.deltalog.follow.log_applier import LogApplier
from monolith.serving.export_versions import ExportVersions
from monolith.tables import TableGroup
from system.crash.online_events import NUM_ITEMS
from system.crash.online_follower import STORE, slot_keys
from system.crash.online_servers import Asked
from system.crash.processes import Life

_AT_ONCE = 1
"""Increments whose rows may be read before the version names them: the one that is being applied."""
_WEIGHT = "total.weight"


class DenseWeight(NamedTuple):
    """An increment of dense weights."""

    total: float
    needs: int
    """Number of the rows that it was trained with."""


class BaseNumbers(NamedTuple):
    """A base: it has these increments, and perhaps a part of the next ones."""

    dense: int
    rows: int


@dataclass(slots=True)
class LogHistory:
    """The history of one part of rows, and of the dense weights."""

    part: str
    items: list[NDArray[np.float32]]
    """Index n + 1 -> the counts of items after increment n of rows; index 0: before all increments."""
    events: list[NDArray[np.float32]]
    dense: dict[int, DenseWeight] = field(default_factory=dict)
    """Dense weights by the number of their increment."""
    bases: list[BaseNumbers] = field(default_factory=list)
    """States at which a reader may have begun."""

    @property
    def last(self) -> int:
        """The last number of rows."""
        return len(self.items) - 2

    def least(self, of: list[NDArray[np.float32]], begin: int, end: int) -> NDArray[np.float32]:
        """Returns the minimum counts from one number to another, inclusive: a killed run may have gone back."""
        begin = min(max(begin, -1), self.last)
        end = min(max(end, begin), self.last)
        least: NDArray[np.float32] = np.min(of[begin + 1 : end + 2], axis=0)
        return least


def read_history(log: DeltaLog, export: Path, num_events: int, bases: Iterable[Mapping[str, int]]) -> LogHistory:
    """Applies the log from its beginning, one increment after another.

    Args:
        log: The complete log: nothing was trimmed.
        export: Export of the servers.
        num_events: Number of events whose rows are read.
        bases: The numbers of every base, including those deleted with their checkpoints.
    """
    stores = ExportVersions(str(export)).newest().with_rows.new_stores()
    tables = TableGroup.of_store(stores[STORE])
    event_table, event_keys = slot_keys("event", range(num_events))
    item_table, item_keys = slot_keys("whole", range(NUM_ITEMS))
    part = next(part for part in log.parts() if part != DENSE_PART)
    history = LogHistory(part, [np.zeros(NUM_ITEMS, np.float32)], [np.zeros(num_events, np.float32)])

    def note(found: Increment) -> None:
        if found.part == part:
            history.items.append(tables[item_table].lookup(item_keys)[:, 0].numpy().copy())
            history.events.append(tables[event_table].lookup(event_keys)[:, 0].numpy().copy())
        elif found.kind is IncrementKind.DENSE:
            weights = tensors_from_bytes(found.payload, origin=f"increment {found.number}")
            history.dense[found.number] = DenseWeight(weights[_WEIGHT].item(), found.needs.get(part, -1))

    applier = LogApplier(stores, log, on_applied=note)
    applier.look_for_parts()
    while applier.apply_next():
        pass
    applier.close()
    history.bases += [BaseNumbers(dense=each.get(DENSE_PART, -1), rows=each[part]) for each in bases if part in each]
    return history


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedCounts:
    """Numbers of requests."""

    requests: int
    """Requests of clients."""
    retries: int
    """Requests that were retried."""
    answers: int
    """Answers that were checked: those to clients, and those to polls of one server."""

    @classmethod
    def of(cls, asked: Sequence[Asked]) -> AskedCounts:
        """Counts all attempts."""
        attempts = [each.request for each in asked if each.request is not None]
        requests = len(set(attempts))
        return cls(
            requests=requests, retries=len(attempts) - requests, answers=sum(each.error is None for each in asked)
        )


def read_asked(path: Path) -> list[Asked]:
    """Reads the recorded attempts of clients."""
    return [Asked.from_line(line) for line in path.read_bytes().splitlines()]


def failures(asked: Sequence[Asked]) -> Iterator[str]:
    """Yields requests of clients that no server has answered: at least one server was always up."""
    of_clients = sorted((each for each in asked if each.request is not None), key=lambda each: each.request or 0)
    for number, group in groupby(of_clients, key=lambda each: each.request):
        attempts = list(group)
        if all(each.error is not None for each in attempts):
            told = "; ".join(f"{each.server} over {each.over}: {each.error}" for each in attempts)
            yield f"request {number} was not answered: {told}"


@dataclass(frozen=True, slots=True)
class LifeOfAnswers:
    """The answers of one process, in the order of their requests."""

    name: str
    answers: list[Asked]

    def reached(self) -> list[Mapping[str, int] | None]:
        """Returns for each answer the version of an answer to a later request, or None."""
        sent = [each.sent for each in self.answers]
        later = [bisect_left(sent, each.came) for each in self.answers]
        return [self.answers[number].sparse if number < len(sent) else None for number in later]


def answers_by_life(asked: Sequence[Asked], lives: Mapping[str, Sequence[Life]]) -> list[LifeOfAnswers]:
    """Assigns every answer to the process that ran from its request to its arrival.

    An answer in flight when a process was killed gets a group of its own: its sender is uncertain.
    """
    found: dict[str, list[Asked]] = defaultdict(list)
    for each in sorted(asked, key=lambda each: each.sent):
        if each.error is not None:
            continue
        known = [n for n, life in enumerate(lives[each.server]) if life.begun <= each.sent and each.came <= life.ended]
        found[f"{each.server}, incarnation {known[0] + 1}" if known else f"{each.server} at {each.sent}"].append(each)
    return [LifeOfAnswers(name, answers) for name, answers in found.items()]


def versions_going_back(life: LifeOfAnswers) -> Iterator[str]:
    """Yields answers whose version is older than that of an answer that arrived before their request."""
    here: dict[str, int] = {}
    under_way: list[tuple[float, int, dict[str, int]]] = []
    for number, each in enumerate(life.answers):
        while under_way and under_way[0][0] <= each.sent:
            for part, last in heappop(under_way)[2].items():
                here[part] = max(last, here.get(part, last))
        named = _named(each)
        for part, last in here.items():
            if named.get(part, -1) < last:
                yield f"{life.name}: {part} went back from {last} to {named.get(part, -1)}"
        heappush(under_way, (each.came, number, named))


def torn_rows(life: LifeOfAnswers) -> Iterator[str]:
    """Yields rows whose columns are not all the same count."""
    for each in life.answers:
        for item, row in each.rows.whole.items():
            if len(set(row)) != 1:
                yield f"{life.name}: the row of item {item} is torn: {row}"


def rows_too_old(life: LifeOfAnswers, history: LogHistory) -> Iterator[str]:
    """Yields rows that are older than the version of their answer."""
    for each, end in zip(life.answers, _ends(life, history), strict=True):
        named = each.sparse.get(history.part, -1)
        yield from _behind(f"{life.name}: version {named}", each, history, begin=named, end=end)


def weights_ahead(life: LifeOfAnswers, history: LogHistory) -> Iterator[str]:
    """Yields dense weights that no version had, or whose rows are missing."""
    for each, end in zip(life.answers, _ends(life, history), strict=True):
        needs = _needs(each, history)
        if needs is None:
            yield f"{life.name}: dense {each.dense} has a weight of {each.rows.total:g}, as no increment after it has"
            continue
        named = each.sparse.get(history.part, -1)
        if named < needs:
            yield f"{life.name}: dense {each.dense} needs rows {needs}, and the answer names {named}"
        where = f"{life.name}: dense {each.dense}, which needs rows {needs}"
        yield from _behind(where, each, history, begin=needs, end=end)


def dense_ahead_in_log(history: LogHistory) -> Iterator[str]:
    """Yields increments of dense weights that count more examples than the rows that they require."""
    for number, weight in history.dense.items():
        rows = history.items[min(weight.needs, history.last) + 1].sum()
        if weight.total > rows:
            yield f"dense {number} counts {weight.total:g} examples, and rows {weight.needs}, which it needs, {rows:g}"


def differing_rows(served: Mapping[str, Any], trained: Mapping[str, Mapping[int, Any]]) -> Iterator[str]:
    """Yields differences between the last rows of a server and those of the trainer."""
    for slot, rows in trained.items():
        shown = {int(key): value for key, value in served[slot].items()}
        wrong = [key for key, row in rows.items() if shown.get(key) != row]
        if wrong:
            first = wrong[0]
            yield (
                f"{slot} {first}: {shown.get(first)} served in the end, {rows[first]} trained ({len(wrong)} are wrong)"
            )


def _named(each: Asked) -> dict[str, int]:
    return {**each.sparse, "dense": each.dense, "export": each.export}


def _ends(life: LifeOfAnswers, history: LogHistory) -> list[int]:
    """Returns for each answer the last increment that its rows may come from."""
    return [history.last if reached is None else reached.get(history.part, -1) + _AT_ONCE for reached in life.reached()]


def _behind(where: str, each: Asked, history: LogHistory, *, begin: int, end: int) -> Iterator[str]:
    """Yields rows of an answer that are older than all states from one number to another."""
    items, events = history.least(history.items, begin, end), history.least(history.events, begin, end)
    for item, row in each.rows.whole.items():
        if min(row) < items[item]:
            yield f"{where}: item {item} counts {min(row):g}, it must be {items[item]:g} at least"
    for event, count in each.rows.event.items():
        if count < events[event]:
            yield f"{where}: event {event} is missing"


def _needs(each: Asked, history: LogHistory) -> int | None:
    """Returns the number of the rows that the weights of an answer were trained with, or None for unknown weights."""
    if each.dense < 0:
        return -1 if each.rows.total == 0.0 else None
    found = [
        weight.needs
        for number, weight in history.dense.items()
        if number >= each.dense and weight.total == each.rows.total
    ]
    least = min((w.total for number, w in history.dense.items() if number >= each.dense), default=-math.inf)
    if each.rows.total >= least:
        found += [base.rows for base in history.bases if base.dense == each.dense]
    return min(found, default=None)
