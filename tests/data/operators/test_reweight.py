"""Rows are repeated and relabelled as the specification's rules say, one row at a time."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data.operators.sample_rows import few
from monolith.data import Batch
from monolith.data.operators import InstanceReweight
from monolith.tensors import Ragged

ACTIONS = st.lists(st.integers(0, 5), max_size=4)


def outcome(
    actions: list[int], priority: list[int], weights: dict[int, int], labels: dict[int, float]
) -> tuple[int, int, float | None]:
    """Priority, count and label of some actions."""
    if not actions:
        return 2000, 1, None
    listed = [action for action in priority if action in actions]
    count = weights.get(listed[0], 1) if listed else 1
    for action in actions:
        if action not in priority:
            count *= weights.get(action, 1)
    if not listed:
        return 1000, count, None
    return priority.index(listed[0]), count, labels.get(listed[0])


def expected_copies(before: tuple[int, int, float | None], now: tuple[int, int, float | None]) -> list[float | None]:
    """The label of each copy; None keeps the row's own."""
    if before[0] == now[0] == 2000:
        return [None]
    if before[0] <= now[0] or now[2] is None:
        return []
    if before[2] is None:
        return [now[2]] * now[1]
    if before[2] != now[2]:
        return [now[2]] * (before[1] + now[1])
    label = -now[2] if before[1] > now[1] else now[2]
    return [label] * abs(before[1] - now[1])


@few
@given(
    st.lists(st.tuples(ACTIONS, ACTIONS), max_size=6),
    st.lists(st.integers(0, 4), max_size=4, unique=True),
    st.dictionaries(st.integers(0, 5), st.integers(0, 3), max_size=5),
    st.dictionaries(st.integers(0, 5), st.sampled_from([1.0, 0.0, -1.0]), max_size=5),
)
def test_rows_are_repeated_as_often_as_the_rules_specify(
    samples: list[tuple[list[int], list[int]]],
    priority: list[int],
    weights: dict[int, int],
    labels: dict[int, float],
) -> None:
    batch = Batch(
        {
            "pre_actions": Ragged.from_lists([sample[0] for sample in samples]),
            "actions": Ragged.from_lists([sample[1] for sample in samples]),
            "label": torch.full((len(samples), 2), 7.0),
            "row": torch.arange(len(samples)),
        },
        num_rows=len(samples),
    )
    made = InstanceReweight(tuple(priority), weights=weights, labels=labels)(batch)
    expected = []
    for number, (pre, now) in enumerate(samples):
        copies = expected_copies(outcome(pre, priority, weights, labels), outcome(now, priority, weights, labels))
        expected += [(number, [7.0 if label is None else label, 7.0]) for label in copies]
    got: list[Any] = [] if made is None else list(zip(made["row"].tolist(), made["label"].tolist(), strict=True))  # type: ignore[union-attr]
    assert got == expected


@pytest.mark.parametrize(
    ("weights", "labels", "pre", "now", "expected"),
    [
        ({1: 1, 3: 4}, {1: 1.0, 3: 1.0}, [3], [1], [-1.0] * 3),  # too many went out: taken back by the other sign
        ({1: 4, 3: 1}, {1: 1.0, 3: 1.0}, [3], [1], [1.0] * 3),  # too few: the rest
        ({1: 2, 3: 2}, {1: 1.0, 3: 1.0}, [3], [1], []),  # just right
        ({1: 2, 3: 3}, {1: 1.0, 3: -1.0}, [3], [1], [1.0] * 5),  # another label: what went out and what is due
        ({1: 2, 3: 3}, {1: 1.0}, [3], [1], [1.0] * 2),  # what went out had no label
        ({1: 2, 3: 3}, {3: 1.0}, [3], [1], []),  # what is due has none
        ({1: 2, 3: 3}, {1: 1.0, 3: -1.0}, [1], [3], []),  # the action is behind the one before
        ({1: 2, 3: 3}, {1: 1.0, 3: -1.0}, [1], [1], []),  # the same action again
        ({1: 2, 9: 3}, {1: 1.0}, [], [1, 9], [1.0] * 6),  # actions outside the list multiply
        ({9: 3}, {1: 1.0}, [], [9], []),  # none of the list
        ({9: 3}, {1: 1.0}, [9], [1], [1.0]),  # one outside the list is behind all that are in it
        ({1: 0}, {1: 1.0}, [], [1], []),
    ],
)
def test_a_sample_makes_up_for_what_was_emitted_before(
    weights: dict[int, int], labels: dict[int, float], pre: list[int], now: list[int], expected: list[float]
) -> None:
    batch = Batch(
        {"pre_actions": Ragged.from_lists([pre]), "actions": Ragged.from_lists([now]), "label": torch.zeros(1, 1)},
        num_rows=1,
    )
    made = InstanceReweight((1, 3), weights=weights, labels=labels)(batch)
    assert ([] if made is None else made["label"].view(-1).tolist()) == expected  # type: ignore[union-attr]


def test_without_pre_actions_the_count_is_that_of_the_actions() -> None:
    batch = Batch({"actions": Ragged.from_lists([[1, 3], [], [9]]), "label": torch.zeros(3, 1)}, num_rows=3)
    made = InstanceReweight.from_text("1,3", "1:2:1,3:1:-1", pre_actions=None)(batch)
    assert made is not None
    assert made["label"].tolist() == [[1.0], [1.0], [0.0]]  # type: ignore[union-attr]


def test_wrong_rules_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must be 'action,...' and 'action:weight:label,...', got '1' and '1:2'"):
        InstanceReweight.from_text("1", "1:2")
    with pytest.raises(ValueError, match="weights must be integers >= 0"):
        InstanceReweight((1,), weights={1: -1}, labels={})
    batch = Batch({"actions": Ragged.from_lists([[1]]), "label": torch.zeros(1, 1)}, num_rows=1)
    with pytest.raises(ValueError, match="batch has no column 'pre_actions'; it has actions, label"):
        InstanceReweight((1,), weights={}, labels={1: math.pi})(batch)
