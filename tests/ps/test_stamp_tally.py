"""What a server tells of the events behind its rows, who hears of batches by their stamps alone."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from monolith.ps.server.hosted_publisher import StampTally
from monolith.tables.batch import BatchStamp


@dataclass
class Rows:
    """As much of the rows of a server as a tally asks for."""

    steps: int = 0
    applied: dict[int, BatchStamp] = field(default_factory=dict)

    def stamps(self) -> dict[int, BatchStamp]:
        return dict(self.applied)

    def apply(
        self,
        worker: int,
        seq: int,
        *,
        newest: int = 0,
        known: tuple[int, int] | None = None,
        examples: int | None = None,
    ) -> None:
        told: dict[str, Any] = {"known_ms": known, "examples": examples}
        source = {name: value for name, value in told.items() if value is not None}
        position = json.dumps({"dataset": "take", "source": source}).encode() if source else b""
        self.applied[worker] = BatchStamp(worker=worker, seq=seq, position=position, event_time_ms=newest)
        self.steps += 1


def tally_of(rows: Any) -> StampTally:
    return StampTally(rows)


def test_the_oldest_event_is_that_of_the_batch_where_its_position_has_it() -> None:
    rows = Rows()
    tally = tally_of(rows)
    rows.apply(0, 0, newest=9_000, known=(2_000, 5_000))
    rows.apply(1, 0, newest=9_000, known=(3_000, 7_000))
    found = tally.take()
    assert (found.oldest_event_ms, found.newest_event_ms, found.step) == (2_000, 7_000, 2)
    assert set(found.stamps) == {0, 1}
    nothing = tally.take()
    assert (nothing.oldest_event_ms, nothing.newest_event_ms) == (0, 0)
    rows.apply(1, 1, newest=9_000, known=(8_000, 8_500))
    found = tally.take()
    assert (found.oldest_event_ms, found.newest_event_ms) == (8_000, 8_500)


def test_of_several_batches_the_oldest_event_is_never_reported_younger_than_it_can_be() -> None:
    rows = Rows()
    rows.apply(0, 0, known=(1_000, 2_000))
    tally = tally_of(rows)
    rows.apply(0, 1, known=(2_500, 3_000))
    rows.apply(0, 2, known=(4_000, 5_000))
    assert tally.take().oldest_event_ms == 1_000, "the batch between is behind the first one"


def test_without_times_of_batches_it_is_the_newest_event_of_before() -> None:
    rows = Rows()
    rows.apply(0, 0, newest=1_000)
    tally = tally_of(rows)
    rows.apply(0, 3, newest=6_000)
    rows.apply(1, 0, newest=4_000)
    found = tally.take()
    assert (found.oldest_event_ms, found.newest_event_ms) == (1_000, 6_000)
    rows.apply(2, 0)
    assert tally.take().oldest_event_ms == 0, "nobody knows"


def test_examples_are_counted_by_positions_also_those_of_batches_between() -> None:
    rows = Rows()
    rows.apply(0, 4, examples=100)
    tally = tally_of(rows)
    rows.apply(0, 5, examples=132)
    rows.apply(0, 6, examples=140)
    rows.apply(1, 0, examples=7)
    assert tally.take().examples == 47
    assert tally.take().examples == 0
    rows.apply(0, 6, examples=140)  # a push that came twice
    assert tally.take().examples == 0
    rows.apply(1, 1, examples=9)
    assert tally.take().examples == 2


def test_examples_of_inputs_that_do_not_count_them_are_not_guessed() -> None:
    rows = Rows()
    rows.apply(0, 0)
    rows.apply(1, 0, known=(1_000, 2_000))
    tally = tally_of(rows)
    rows.apply(0, 1)
    rows.apply(1, 1, known=(3_000, 4_000))
    rows.apply(2, 0, examples=3)
    assert tally.take().examples == 3
    rows.apply(1, 2, examples=50)  # the position before it did not count
    rows.apply(2, 1, examples=1)  # an input that was begun anew
    assert tally.take().examples == 0
