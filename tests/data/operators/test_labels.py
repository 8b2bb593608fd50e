"""Labels are what a loop over samples makes of actions, heads and formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data.operators.sample_rows import SMALL, Row, batch_of, few, rows, without_nan
from monolith.data import INVALID_LABEL, Batch
from monolith.data.operators import (
    AddAction,
    AddLabel,
    HasValidLabel,
    LabelNormalization,
    LabelUpperBound,
    MultiHeadLabel,
    RankLabel,
    ScatterLabel,
    TaskLabel,
    Value,
    parse_task_labels,
)
from monolith.tensors import Ragged


def labels_of(batch: Batch) -> list[Any]:
    labels = batch["label"]
    assert isinstance(labels, torch.Tensor)
    return [without_nan(row) for row in labels.tolist()]


ACTIONS = st.lists(SMALL, max_size=3, unique=True)


@few
@given(rows(widths=2), ACTIONS, ACTIONS, st.sampled_from([0.0, -1.0]))
def test_tasks_are_appended_by_their_actions(
    samples: list[Row], positive: list[int], negative: list[int], negative_value: float
) -> None:
    negative = [action for action in negative if action not in positive]
    tasks = (TaskLabel(tuple(positive), negative=tuple(negative)), TaskLabel((6,)))
    made = AddLabel(tasks, negative_value=negative_value, new_sample_rate=0.5)(batch_of(samples, widths=2))
    expected = []
    for row in samples:
        first = INVALID_LABEL if row["label"][0] <= 0 else row["label"][0]
        actions = set(row["actions"])
        if actions & set(positive):
            label = 1.0
        elif not negative or actions & set(negative):
            label = negative_value
        else:
            label = INVALID_LABEL
        expected.append(without_nan([first, row["label"][1], label, 1.0 if 6 in actions else negative_value]))
    assert labels_of(made) == expected
    assert made["sample_rate"].tolist() == [0.5] * len(samples)  # type: ignore[union-attr]


def test_the_vector_of_the_specification() -> None:
    count = 10_000
    batch = Batch({"actions": Ragged.from_lists([[3]] * count), "uid": torch.arange(count)}, num_rows=count)
    labels = AddLabel.from_text("1,2:3:1.0;4::0.5", keys=("uid",))(batch)["label"]
    assert isinstance(labels, torch.Tensor)
    assert torch.unique(labels[:, 0]).tolist() == [0.0]
    assert torch.unique(labels[:, 1]).tolist() == [INVALID_LABEL, 0.0]
    assert float((labels[:, 1] == 0).double().mean()) == pytest.approx(0.5, abs=0.02)
    again = AddLabel.from_text("1,2:3:1.0;4::0.5", keys=("uid",))(batch)["label"]
    assert torch.equal(labels, again)  # type: ignore[arg-type]


def test_labels_have_the_requested_values() -> None:
    batch = Batch({"actions": Ragged.from_lists([[1], [5], [2]])}, num_rows=3)
    made = AddLabel((TaskLabel((1,), negative=(2,)),), positive_value=5.0, negative_value=-1.0)(batch)
    assert labels_of(made) == [[5.0], [INVALID_LABEL], [-1.0]]


def test_rows_without_any_label_go() -> None:
    batch = Batch({"actions": Ragged.from_lists([[1], [5], [2]])}, num_rows=3)
    kept = HasValidLabel()(AddLabel((TaskLabel((1,), negative=(2,)),))(batch))
    assert kept is not None
    assert labels_of(kept) == [[1.0], [0.0]]


@few
@given(rows(widths=2), st.lists(st.sampled_from([0.5, -1.0, 100.0, math.inf]), max_size=2))
def test_bounds_clamp_from_above(samples: list[Row], bounds: list[float]) -> None:
    made = LabelUpperBound(tuple(bounds))(batch_of(samples, widths=2))
    limits = [*bounds, math.inf, math.inf][:2]
    expected = [
        [None if math.isnan(label) else min(label, limit) for label, limit in zip(row["label"], limits, strict=True)]
        for row in samples
    ]
    assert labels_of(made) == expected


METHODS = ["log", "scale", "scale2int", "pow", "repow", "scalelog"]


def normalized(label: float, method: str, value: float) -> float:
    """The formulas in float64, one label at a time."""
    with torch.no_grad():
        one = torch.tensor(label, dtype=torch.float64)
        if method == "log":
            return float(torch.log(torch.clamp(one + value, min=0)))
        if method == "scale":
            return label / value
        if method == "scale2int":
            return float(math.trunc(label / value)) if math.isfinite(label) else label
        if method == "pow":
            return float(torch.pow(one + 1, value))
        if method == "repow":
            return math.nan if math.isnan(label) else label**value if label > 0 else 0.0
        return float(torch.log(torch.clamp(one / value + 1, min=0)))


@few
@given(
    st.lists(st.one_of(st.floats(-50, 50, width=32), st.sampled_from([INVALID_LABEL, math.nan, 0.0])), max_size=8),
    st.sampled_from(METHODS),
    st.sampled_from([0.5, 2.0, 10.0, -3.0]),
)
def test_each_method_is_its_formula(labels: list[float], method: str, value: float) -> None:
    batch = Batch({"label": torch.tensor(labels, dtype=torch.float32).view(-1, 1)}, num_rows=len(labels))
    made = [row[0] for row in labels_of(LabelNormalization((method,), (value,))(batch))]
    for label, got in zip(labels, made, strict=True):
        wanted = label if label == INVALID_LABEL else normalized(label, method, value)
        assert got is None if math.isnan(wanted) else got == pytest.approx(wanted, rel=1e-5, abs=1e-6)


def test_methods_apply_in_their_order() -> None:
    batch = Batch({"label": torch.tensor([[8.0]])}, num_rows=1)
    assert labels_of(LabelNormalization(("scale", "repow"), (2.0, 2.0))(batch)) == [[16.0]]
    assert labels_of(LabelNormalization(("repow", "scale"), (2.0, 2.0))(batch)) == [[32.0]]


@few
@given(rows(widths=2), st.dictionaries(SMALL, st.integers(0, 3), min_size=1, max_size=4))
def test_labels_move_to_the_task_of_their_channel(samples: list[Row], index_of: dict[int, int]) -> None:
    made = ScatterLabel(index_of, column="item_id")(batch_of(samples, widths=2))
    width = max(index_of.values()) + 1
    expected = []
    for row in samples:
        labels = [INVALID_LABEL] * width
        if row["item_id"] in index_of:
            labels[index_of[row["item_id"]]] = row["label"][0]
        expected.append(without_nan(labels))
    assert labels_of(made) == expected
    text = ",".join(f"{channel}:{index}" for channel, index in index_of.items())
    assert ScatterLabel.from_text(text, column="item_id") == ScatterLabel(index_of, column="item_id")


@few
@given(rows(), ACTIONS, ACTIONS, st.lists(SMALL, max_size=4, unique=True), st.booleans())
def test_heads_choose_the_task_and_actions_the_label(
    samples: list[Row], positive: list[int], negative: list[int], priority: list[int], by_text: bool
) -> None:
    negative = [action for action in negative if action not in positive]
    heads = {"Rome": 2, "Oslo": 0} if by_text else {"1": 2, "3": 0}
    operator = MultiHeadLabel(
        heads,
        column="city" if by_text else "item_id",
        num_tasks=4,
        positive=tuple(positive),
        negative=tuple(negative),
        action_priority=tuple(priority),
    )

    def label_of(row: Row) -> float:
        if not positive and not negative:
            return float(row["label"][0])
        candidates = row["actions"]
        if priority:
            listed = [action for action in priority if action in row["actions"]]
            candidates = listed[:1]
        if set(candidates) & set(positive):
            return 1.0
        return 0.0 if not negative or set(candidates) & set(negative) else INVALID_LABEL

    expected = []
    for row in samples:
        labels = [INVALID_LABEL] * 4
        head = row["city"].decode("latin1") if by_text else str(row["item_id"])
        if head in heads:
            labels[heads[head]] = label_of(row)
        expected.append(without_nan(labels))
    assert labels_of(operator(batch_of(samples))) == expected


def test_rank_labels() -> None:
    numbers = torch.tensor([0, 1, 2, 40, -1])
    batch = Batch({"rank": numbers, "chnid": numbers, "is_draw": numbers, "label": torch.ones(5, 1)}, num_rows=5)
    assert [row[1] for row in labels_of(RankLabel("rank")(batch))] == [0, 1, 2, 17, -1]
    assert [row[1] for row in labels_of(RankLabel("chnid")(batch))] == [0, 1, 2, 2, 2]
    assert [row[1] for row in labels_of(RankLabel("draw")(batch))] == [0, 1, 1, 1, 1]


@few
@given(rows(), SMALL, SMALL)
def test_actions_are_added_where_the_condition_holds(samples: list[Row], bound: int, action: int) -> None:
    made = AddAction(action, where=Value("uid", op="ge", operand=bound))(batch_of(samples))["actions"]
    assert isinstance(made, Ragged)
    expected = [[*row["actions"], *([action] if row["uid"] >= bound else [])] for row in samples]
    assert made.to_lists() == expected


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: TaskLabel((1, 2), negative=(2,)), r"actions \[2\] cannot be both positive and negative"),
        (lambda: TaskLabel((1,), sample_rate=1.5), "sample_rate must be in"),
        (lambda: TaskLabel((1 << 40,)), "32-bit integers"),
        (lambda: AddLabel(()), "at least one"),
        (lambda: AddLabel((TaskLabel((1,)),), new_sample_rate=0.0), "new_sample_rate must be > 0"),
        (lambda: parse_task_labels("1:2:3:4"), "must be 'positive"),
        (lambda: parse_task_labels("one"), "must be numbers, got 'one'"),
        (lambda: LabelUpperBound((math.nan,)), "bounds must be numbers"),
        (lambda: LabelNormalization(("sqrt",), (1.0,)), "method must be one of"),
        (lambda: LabelNormalization(("log",), ()), "must be of one length, got 1 and 0"),
        (lambda: LabelNormalization(("scale",), (0.0,)), "must not be 0"),
        (lambda: ScatterLabel({}), "numbered from 0"),
        (lambda: ScatterLabel.from_text("1-2"), "must be 'channel:index"),
        (lambda: MultiHeadLabel({"a": 3}, num_tasks=2), "num_tasks must be 4 or more"),
        (lambda: RankLabel("other"), "source must be"),
    ],
)
def test_wrong_tasks_are_refused(make: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


def test_a_head_that_is_no_number_is_named() -> None:
    batch = Batch({"chnid": torch.arange(2), "label": torch.ones(2, 1)}, num_rows=2)
    with pytest.raises(TypeError, match="column 'chnid' has numbers, head 'Rome' is none"):
        MultiHeadLabel({"Rome": 0})(batch)
