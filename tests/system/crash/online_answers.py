"""Rules for the answers of two servers, whatever was killed meanwhile; every rule is a function of the observations.

An answer names its version: no row in it may be older, no row may mix two states, and the dense weights must not be
ahead of the rows that they were trained with. Versions of one process do not decrease. A client that retries at the
other server gets an answer.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import groupby
from typing import TYPE_CHECKING, Any

from system.crash.online_asking import Asked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from system.crash.online_history import LogHistory
    from system.crash.online_tree import Life

__all__ = [
    "AskedCounts",
    "LifeOfAnswers",
    "answers_by_life",
    "dense_ahead_in_log",
    "differing_rows",
    "failures",
    "read_asked",
    "rows_too_old",
    "torn_rows",
    "versions_going_back",
    "weights_ahead",
]

_AT_ONCE = 1
"""Increments whose rows may be read before the version names them: the one that is being applied."""


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
