"""Filters keep the rows that a loop over samples keeps."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data.operators.sample_rows import LABELS, SMALL, Row, batch_of, few, rows, rows_of
from monolith.config import Config
from monolith.data import INVALID_LABEL, Batch
from monolith.data.operators import (
    AllOf,
    AnyOf,
    Compose,
    Condition,
    HasAllIds,
    HasAllSlots,
    HasAnyId,
    HasValidLabel,
    LabelAbove,
    Value,
    filter_by_fids,
    load_operand,
)
from monolith.data.protos.example_pb2 import FilterValues
from monolith.errors import DataLossError
from monolith.ids import pack_v2
from monolith.tensors import Ragged

IDS = st.lists(st.one_of(SMALL, st.sampled_from([-1, -(1 << 63), (1 << 63) - 1, (1 << 64) - 1])), max_size=4)


def signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def same_rows(condition: Condition, samples: list[Row], expected: Callable[[Row], bool], *, widths: int = 1) -> None:
    batch = batch_of(samples, widths=widths)
    kept = condition(batch)
    wanted = [row for row, raw in zip(rows_of(batch), samples, strict=True) if expected(raw)]
    assert rows_of(kept) == wanted
    assert (kept is None) == (not wanted)
    assert condition.holds(batch).tolist() == [expected(raw) for raw in samples]


@few
@given(rows(), IDS)
def test_any_id(samples: list[Row], ids: list[int]) -> None:
    wanted = {signed(number) for number in ids}
    condition = HasAnyId(("user", "item"), ids=tuple(ids))
    same_rows(condition, samples, lambda row: bool(wanted & {*row["user"], *row["item"]}))


@few
@given(rows(), IDS)
def test_all_ids(samples: list[Row], ids: list[int]) -> None:
    wanted = {signed(number) for number in ids}
    condition = HasAllIds(("user", "item"), ids=tuple(ids))
    same_rows(condition, samples, lambda row: wanted <= {*row["user"], *row["item"]})


@few
@given(rows(), st.lists(st.sampled_from([0, 1, 32767, 16384]), max_size=3))
def test_all_slots(samples: list[Row], slots: list[int]) -> None:
    condition = HasAllSlots(("user",), slots=tuple(slots))
    same_rows(condition, samples, lambda row: set(slots) <= {number >> 48 & 0x7FFF for number in row["user"]})


@few
@given(rows(), IDS, IDS, IDS, st.lists(SMALL, max_size=3, unique=True), st.integers(0, 1 << 62))
def test_all_tests_of_filter_by_fids(
    samples: list[Row], banned: list[int], has: list[int], select: list[int], actions: list[int], since: int
) -> None:
    condition = filter_by_fids(
        ["user"], filter_fids=banned, has_fids=has, select_fids=select, has_actions=actions, req_time_min=since
    )

    def expected(row: Row) -> bool:
        ids = set(row["user"])
        return (
            (since <= 0 or row["req_time"] >= since)
            and not ids & set(map(signed, banned))
            and (not has or bool(ids & set(map(signed, has))))
            and set(map(signed, select)) <= ids
            and (not actions or bool(set(row["actions"]) & set(actions)))
        )

    same_rows(condition, samples, expected)


COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "lt": operator.lt,
    "le": operator.le,
    "neq": operator.ne,
}


@few
@given(rows(), st.sampled_from(sorted(COMPARE)), st.integers(-(1 << 63), (1 << 63) - 1))
def test_comparisons_of_integers_are_exact(samples: list[Row], op: str, operand: int) -> None:
    for bound in (operand, *[row["req_time"] for row in samples[:1]]):
        condition = Value("req_time", op=op, operand=bound)
        same_rows(condition, samples, lambda row, bound=bound: COMPARE[op](row["req_time"], bound))  # type: ignore[misc]


@few
@given(rows(), st.sampled_from(sorted(COMPARE)), LABELS.filter(math.isfinite))
def test_comparisons_of_reals(samples: list[Row], op: str, operand: float) -> None:
    same_rows(Value("label", op=op, operand=operand), samples, lambda row: COMPARE[op](row["label"][0], operand))


TEXTS = st.sampled_from([b"", b"Ro", b"Rome", b"\0", b"e", b"o", b"Rome\0"])


@few
@given(rows(), st.sampled_from(sorted(COMPARE)), TEXTS)
def test_comparisons_of_texts(samples: list[Row], op: str, operand: bytes) -> None:
    same_rows(Value("city", op=op, operand=operand), samples, lambda row: COMPARE[op](row["city"], operand))


@few
@given(rows(), st.lists(TEXTS, max_size=3))
def test_texts_by_their_ends_and_among_others(samples: list[Row], operand: list[bytes]) -> None:
    given_ = tuple(operand)
    same_rows(Value("city", op="startswith", operand=given_), samples, lambda row: row["city"].startswith(given_))
    same_rows(Value("city", op="endswith", operand=given_), samples, lambda row: row["city"].endswith(given_))
    same_rows(Value("city", op="in", operand=given_), samples, lambda row: row["city"] in given_)
    same_rows(Value("city", op="not-in", operand=given_), samples, lambda row: row["city"] not in given_)


@few
@given(rows(), SMALL, SMALL)
def test_between_is_half_open(samples: list[Row], low: int, high: int) -> None:
    same_rows(Value("uid", op="between", operand=(low, high)), samples, lambda row: low <= row["uid"] < high)
    same_rows(
        Value("city", op="between", operand=("Oslo", "Rome")), samples, lambda row: b"Oslo" <= row["city"] < b"Rome"
    )


@few
@given(rows(), st.lists(SMALL, max_size=4))
def test_membership_of_integers(samples: list[Row], operand: list[int]) -> None:
    same_rows(Value("uid", op="in", operand=tuple(operand)), samples, lambda row: row["uid"] in operand)
    same_rows(Value("uid", op="not-in", operand=tuple(operand)), samples, lambda row: row["uid"] not in operand)


@few
@given(rows(), st.lists(SMALL, max_size=4), st.booleans())
def test_sets_of_integers_need_no_order(samples: list[Row], operand: list[int], keep_empty: bool) -> None:
    tests: dict[str, Callable[[set[int]], bool]] = {
        "any": lambda values: bool(values & set(operand)),
        "all": lambda values: set(operand) <= values,
        "diff": lambda values: not values & set(operand),
    }
    for op, test in tests.items():
        condition = Value("actions", op=op, operand=tuple(operand), keep_empty=keep_empty)
        same_rows(
            condition,
            samples,
            lambda row, test=test: test(set(row["actions"])) if row["actions"] else keep_empty,  # type: ignore[misc]
        )


@few
@given(st.lists(st.lists(SMALL, max_size=1), max_size=6), SMALL, st.booleans())
def test_lists_of_one_number_compare_and_empty_ones_follow_keep_empty(
    lists: list[list[int]], operand: int, keep_empty: bool
) -> None:
    batch = Batch({"age": Ragged.from_lists(lists)}, num_rows=len(lists))
    held = Value("age", op="ge", operand=operand, keep_empty=keep_empty).holds(batch)
    assert held.tolist() == [each[0] >= operand if each else keep_empty for each in lists]


@few
@given(rows(widths=2), LABELS.filter(math.isfinite), LABELS.filter(math.isfinite), st.booleans())
def test_labels_above_their_thresholds(samples: list[Row], first: float, second: float, strict: bool) -> None:
    passes = operator.gt if strict else operator.ge

    def expected(row: Row) -> bool:
        pairs = zip(row["label"], (first, second), strict=True)
        return any(label != INVALID_LABEL and passes(label, bound) for label, bound in pairs)

    same_rows(LabelAbove((first, second), strict=strict), samples, expected, widths=2)
    same_rows(
        LabelAbove((first,)),
        samples,
        lambda row: row["label"][0] != INVALID_LABEL and row["label"][0] >= first,
        widths=2,
    )
    same_rows(
        HasValidLabel(),
        samples,
        lambda row: any(label != INVALID_LABEL and not math.isnan(label) for label in row["label"]),
        widths=2,
    )


@few
@given(rows(), SMALL, SMALL)
def test_conditions_combine_as_logic_does(samples: list[Row], uid: int, item: int) -> None:
    left, right = Value("uid", op="ge", operand=uid), HasAnyId("item", ids=(item,))

    def tests(row: Row) -> tuple[bool, bool]:
        return row["uid"] >= uid, item in row["item"]

    same_rows(left & right, samples, lambda row: all(tests(row)))
    same_rows(left | right, samples, lambda row: any(tests(row)))
    same_rows(~left, samples, lambda row: not tests(row)[0])
    same_rows(~(left & ~right), samples, lambda row: not tests(row)[0] or tests(row)[1])
    same_rows(AllOf(()), samples, lambda _: True)
    same_rows(AnyOf(()), samples, lambda _: False)
    assert rows_of(Compose((left, right))(batch_of(samples))) == rows_of((left & right)(batch_of(samples)))


def test_a_batch_that_keeps_all_rows_is_not_copied() -> None:
    batch = Batch({"uid": torch.arange(3)}, num_rows=3)
    assert Value("uid", op="ge", operand=0)(batch) is batch


def test_conditions_travel_as_dictionaries() -> None:
    condition = ~(HasAnyId(("user",), ids=(1, 2)) | Value("city", op="in", operand=("Rome",))) & LabelAbove((0.5,))
    assert Config.from_dict(condition.to_dict()) == condition


@pytest.mark.parametrize(
    ("condition", "kind", "text"),
    [
        (
            Value("age", op="eq", operand=1),
            ValueError,
            "Value: batch has no column 'age'; it has user, uid, label, city",
        ),
        (HasAnyId("age", ids=(1,)), ValueError, "HasAnyId: batch has no column 'age'; it has user"),
        (HasAnyId("uid", ids=(1,)), TypeError, "HasAnyId: column 'uid' must be a Ragged of int64, got a tensor of"),
        (Value("uid", op="eq", operand="x"), TypeError, "needs operands that compare with torch.int64, got .'x',."),
        (Value("uid", op="eq", operand=0.5), TypeError, "needs operands that compare with torch.int64"),
        (
            Value("uid", op="eq", operand=1 << 63),
            ValueError,
            "operands must fit torch.int64, got .9223372036854775808,.",
        ),
        (Value("uid", op="startswith", operand="x"), TypeError, "needs texts, got a tensor of"),
        (Value("uid", op="any", operand=1), TypeError, "needs a Ragged of int64, got a tensor of"),
        (Value("city", op="any", operand=1), TypeError, "needs a Ragged of int64, got a list of bytes"),
        (Value("city", op="eq", operand=1), TypeError, "needs numbers, got a list of bytes"),
        (Value("user", op="eq", operand=1), TypeError, "needs lists of one number, got one of 2; any, all and diff"),
        (Value("pair", op="eq", operand=1), TypeError, "needs one number for each row, got a tensor of"),
        (LabelAbove((1.0, 2.0)), ValueError, "LabelAbove: column 'label' must have 2 labels or more, got 1"),
        (LabelAbove((1.0,), label="uid"), TypeError, "column 'uid' must be a floating-point tensor"),
    ],
)
def test_what_does_not_fit_is_named(condition: Condition, kind: type[Exception], text: str) -> None:
    batch = Batch(
        {
            "user": Ragged.from_lists([[1, 2]]),
            "uid": torch.arange(1),
            "label": torch.ones(1, 1),
            "city": [b"Rome"],
            "pair": torch.ones(1, 2, dtype=torch.int64),
        },
        num_rows=1,
    )
    with pytest.raises(kind, match=text):
        condition.holds(batch)


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: Value("a", op="like", operand=1), ValueError, "op must be one of gt, ge"),
        (lambda: Value("a", op="gt", operand=(1, 2)), ValueError, "'gt' takes 1 operands, got 2"),
        (lambda: Value("a", op="between", operand=(1,)), ValueError, "'between' takes 2 operands, got 1"),
        (lambda: Value("a", op="in", operand=(1, "x")), TypeError, "all be numbers or all be texts"),
        (lambda: Value("a", op="startswith", operand=(1,)), TypeError, "'startswith' takes texts"),
        (lambda: HasAnyId((), ids=(1,)), ValueError, "at least one column"),
        (lambda: HasAnyId("a", ids=(1 << 64,)), ValueError, "64-bit integers"),
        (lambda: HasAllSlots("a", slots=(32768,)), ValueError, "from 0 to 32767"),
        (lambda: LabelAbove(()), ValueError, "at least one threshold"),
        (lambda: AllOf((1,)), TypeError, "must be of Condition, got 1"),  # type: ignore[arg-type]
        (lambda: Compose((1,)), TypeError, "must be callable, got 1"),  # type: ignore[arg-type]
    ],
)
def test_wrong_conditions_are_refused_when_made(make: Callable[[], object], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        make()


def test_operands_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "operand"
    for message, expected in (
        (FilterValues(int64_list={"value": [5, -7]}), (5, -7)),
        (FilterValues(float_list={"value": [0.5]}), (0.5,)),
        (FilterValues(bytes_list={"value": [b"Rome"]}), (b"Rome",)),
    ):
        path.write_bytes(message.SerializeToString())
        assert load_operand(str(path)) == expected
    path.write_bytes(b"\xff\xff")
    with pytest.raises(DataLossError, match="operand: no FilterValues"):
        load_operand(str(path))
    path.write_bytes(b"")
    with pytest.raises(DataLossError, match="without a list"):
        load_operand(str(path))


def test_slots_are_read_by_the_v2_layout() -> None:
    batch = Batch({"user": Ragged.from_lists([[pack_v2(7, 1), pack_v2(9, 1)], [pack_v2(7, 2)]])}, num_rows=2)
    assert HasAllSlots("user", slots=(7, 9)).holds(batch).tolist() == [True, False]
