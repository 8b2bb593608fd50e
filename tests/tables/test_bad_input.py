"""A wrong call is refused with words that say what to write instead, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from monolith.errors import InvalidArgumentError
from monolith.tables import HashTable, Segment, TableConfig, TableGroup

ONE = np.ones((1, 2), np.float32)


@pytest.fixture
def table() -> Iterator[HashTable]:
    """A table with one row, which must still be there alone when the test is over."""
    table = HashTable(TableConfig([Segment(1), Segment(1)], name="user"))
    table.assign([1], [[1.0, 2.0]], time=5)
    yield table
    assert table.ids().tolist() == [1]
    assert table.lookup([1]).tolist() == [[1.0, 2.0]]
    assert table.lookup_rows([1]).time.tolist() == [5]
    assert table.newest_time == 5


BAD_IDS = [
    (
        torch.tensor([1], dtype=torch.int32),
        TypeError,
        r"ids must be int64, got torch.int32; write ids.to\(torch.int64\)",
    ),
    (torch.tensor([1.0]), TypeError, r"ids must be int64, got torch.float32; write ids.to\(torch.int64\)"),
    (np.array([1], np.int32), TypeError, r"ids must be int64, got int32; write ids.astype\(np.int64\)"),
    (np.array([1], np.uint64), TypeError, r"ids must be int64, got uint64; write ids.view\(np.int64\)"),
    (np.array([1], ">i8"), TypeError, r"ids must be int64, got >i8; write ids.astype\(np.int64\)"),
    (np.array([True]), TypeError, r"ids must be int64, got bool"),
    (np.array(["1"]), TypeError, r"ids must be int64, got <U1"),
    ([1.5], TypeError, r"ids must be int64 \(integers in \[-2\^63, 2\^63\)\), got list of float64"),
    ([2**63], TypeError, r"ids must be int64 \(integers"),
    ([2**70], TypeError, r"ids must be int64 \(integers"),
    (["1"], TypeError, r"ids must be int64 \(integers"),
    (None, TypeError, r"ids must be int64 \(integers"),
    ([[1], [1, 2]], InvalidArgumentError, r"ids must be a rectangular list of numbers"),
    (
        torch.ones(1, dtype=torch.int64, device="meta"),
        InvalidArgumentError,
        r"ids must be on the CPU, got meta; write ids.cpu\(\)",
    ),
    (
        torch.tensor([1, 2]).to_sparse(),
        TypeError,
        r"ids must be a dense tensor, got torch.sparse_coo; write ids.to_dense\(\)",
    ),
]


@pytest.mark.parametrize(("ids", "kind", "message"), BAD_IDS)
def test_ids_of_the_wrong_kind_are_refused(table: HashTable, ids: Any, kind: type[Exception], message: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: table.lookup(ids),
        lambda: table.contains(ids),
        lambda: table.lookup_rows(ids),
        lambda: table.assign(ids, ONE),
        lambda: table.apply_gradients(ids, ONE),
        lambda: table.erase(ids),
        lambda: table.reinitialize(ids),
        lambda: table.plan(ids),
        lambda: table.lookup_pooled(ids, [0, 1]),
    ]
    for call in calls:
        with pytest.raises(kind, match=f"table 'user': {message}"):
            call()


@pytest.mark.parametrize(
    ("grads", "kind", "message"),
    [
        (torch.ones(1, 2, dtype=torch.float64), TypeError, r"got torch.float64; write {name}.to\(torch.float32\)"),
        (torch.ones(1, 2, dtype=torch.float16), TypeError, r"got torch.float16; write {name}.to\(torch.float32\)"),
        (np.ones((1, 2)), TypeError, r"got float64; write {name}.astype\(np.float32\)"),
        (np.ones((1, 2), np.int64), TypeError, r"got int64; write {name}.astype\(np.float32\)"),
        ([["a", "b"]], TypeError, r"{name} must be float32 \(numbers\), got list of <U1"),
        (np.ones((2, 2), np.float32), InvalidArgumentError, r"{name} must have shape \(1, 2\), got \(2, 2\)"),
        (np.ones((1, 3), np.float32), InvalidArgumentError, r"{name} must have shape \(1, 2\), got \(1, 3\)"),
        (np.ones(2, np.float32), InvalidArgumentError, r"{name} must have shape \(1, 2\), got \(2,\)"),
        (np.ones((0, 2), np.float32), InvalidArgumentError, r"{name} must have shape \(1, 2\), got \(0, 2\)"),
        (
            torch.ones(1, 2, device="meta"),
            InvalidArgumentError,
            r"{name} must be on the CPU, got meta; write {name}.cpu\(\)",
        ),
    ],
)
def test_values_of_the_wrong_kind_are_refused(
    table: HashTable, grads: Any, kind: type[Exception], message: str
) -> None:
    for name, call in (
        ("rows", lambda: table.assign([1], grads)),
        ("rows", lambda: table.assign_add([1], grads)),
        ("grads", lambda: table.apply_gradients([1], grads)),
        ("latest", lambda: table.apply_gradients([1], ONE, latest=grads)),
        ("grads", lambda: table.apply(table.plan([1]), grads)),
        ("grads", lambda: table.apply_pooled_gradients([1], [0, 1], grads)),
    ):
        with pytest.raises(kind, match=f"table 'user': .*{message.format(name=name)}"):
            call()


@pytest.mark.parametrize(
    ("time", "kind", "message"),
    [
        (-1, InvalidArgumentError, r"time must be Unix seconds in \[0, 2\^32\), got -1"),
        (2**32, InvalidArgumentError, r"time must be Unix seconds in \[0, 2\^32\), got 4294967296"),
        (np.array([-7]), InvalidArgumentError, r"time must be Unix seconds in \[0, 2\^32\), got -7"),
        (torch.tensor([2**40]), InvalidArgumentError, r"time must be Unix seconds in \[0, 2\^32\), got 1099511627776"),
        (
            np.array([1, 2]),
            InvalidArgumentError,
            r"time must be one number or have the shape \(1,\) of ids, got \(2,\)",
        ),
        (1.5, TypeError, r"time must be integer Unix seconds, got float 1.5; write int\(time\)"),
        ("now", TypeError, r"time must be integer Unix seconds, got str 'now'"),
        (np.array([1], np.int32), TypeError, r"time must be int64, got int32"),
    ],
)
def test_times_outside_of_32_bits_are_refused(table: HashTable, time: Any, kind: type[Exception], message: str) -> None:
    for call in (
        lambda: table.assign([1], ONE, time=time),
        lambda: table.assign_add([1], ONE, time=time),
        lambda: table.apply_gradients([1], ONE, time=time),
        lambda: table.apply_pooled_gradients([1], [0, 1], ONE, time=time),
    ):
        with pytest.raises(kind, match=f"table 'user': {message}"):
            call()


def test_among_several_times_the_wrong_one_is_named(table: HashTable) -> None:
    for times, wrong in (([0, -1], -1), ([5, 2**32], 2**32)):
        with pytest.raises(InvalidArgumentError, match=rf"time must be Unix seconds in \[0, 2\^32\), got {wrong}$"):
            table.assign([1, 2], np.ones((2, 2), np.float32), time=np.array(times))


@pytest.mark.parametrize(
    ("rates", "kind", "message"),
    [
        ([0.1], InvalidArgumentError, r"learning_rates must have one number per segment \(2\), got 1"),
        (0.1, InvalidArgumentError, r"learning_rates must have one number per segment \(2\), got 1"),
        (torch.ones(3), InvalidArgumentError, r"learning_rates must have one number per segment \(2\), got 3"),
        ([], InvalidArgumentError, r"learning_rates must have one number per segment \(2\), got 0"),
        ([0.1, float("nan")], InvalidArgumentError, r"learning_rates must be finite and >= 0, got \[0.1.*, nan\]"),
        ([0.1, -0.5], InvalidArgumentError, r"learning_rates must be finite and >= 0, got \[0.1.*, -0.5\]"),
        (["a", "b"], TypeError, r"learning_rates must be numbers, got \['a', 'b'\]"),
    ],
)
def test_a_wrong_learning_rate_vector_is_refused(
    table: HashTable, rates: Any, kind: type[Exception], message: str
) -> None:
    calls: list[Callable[[], object]] = [
        lambda: table.apply_gradients([1], ONE, learning_rates=rates),
        lambda: table.apply(table.plan([1]), ONE, learning_rates=rates),
        lambda: table.apply_pooled_gradients([1], [0, 1], ONE, learning_rates=rates),
    ]
    for call in calls:
        with pytest.raises(kind, match=f"table 'user': {message}"):
            call()


@pytest.mark.parametrize(
    ("step", "kind", "message"),
    [(-1, InvalidArgumentError, "step must be >= 0, got -1"), (1.0, TypeError, "step must be an int, got float 1.0")],
)
def test_a_wrong_step_is_refused(table: HashTable, step: Any, kind: type[Exception], message: str) -> None:
    for call in (
        lambda: table.apply_gradients([1], ONE, step=step),
        lambda: table.lookup([1], step=step),
        lambda: table.read(table.plan([1]), step=step),
        lambda: table.lookup_pooled([1], [0, 1], step=step),
    ):
        with pytest.raises(kind, match=message):
            call()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_gradient_that_is_not_finite_names_the_first_id_and_changes_nothing(table: HashTable, bad: float) -> None:
    grads = np.ones((4, 2), np.float32)
    grads[2, 1] = bad
    grads[3, 0] = bad
    with pytest.raises(InvalidArgumentError, match=r"table 'user': the gradient of id -9 \(position 2\) is not finite"):
        table.apply_gradients([1, 8, -9, 7], grads, time=9)
    with pytest.raises(InvalidArgumentError, match=r"the gradient of id -9 "):
        table.apply_pooled_gradients([1, 8, -9, 7], [0, 1, 2, 3, 4], grads, time=9)


def test_finite_gradients_whose_sum_is_not_finite_are_refused_and_change_nothing(table: HashTable) -> None:
    large = np.full((3, 2), -3e38, np.float32)
    with pytest.raises(
        InvalidArgumentError, match=r"table 'user': the sum of the gradients of id 8 \(position 1\) is not finite"
    ):
        table.apply_gradients([1, 8, 8], large, time=9)
    with pytest.raises(InvalidArgumentError, match=r"the sum of the gradients of id 8 "):
        table.apply_pooled_gradients([8, 8], [0, 1, 2], large[:2], time=9)
    with pytest.raises(InvalidArgumentError, match=r"the sum of the gradients of id 8 "):
        table.apply(table.plan([8, 8]), large[:2], per="id", time=9)
    grads = np.array([[np.inf, 0], [-np.inf, 0]], np.float32)
    with pytest.raises(InvalidArgumentError, match=r"the gradient of id 8 \(position 0\)"):
        table.apply_gradients([8, 8], grads, time=9)


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_a_scale_that_is_not_finite_is_refused(table: HashTable, scale: float) -> None:
    with pytest.raises(InvalidArgumentError, match="table 'user': scale must be finite, got"):
        table.apply(table.plan([1]), ONE, scale=scale)


def test_two_to_the_31_ids_are_refused_before_they_are_copied(table: HashTable) -> None:
    ids = np.broadcast_to(np.int64(1), (2**31,))
    message = r"table 'user': at most 2\^31 - 1 ids fit in one call, got 2147483648; split the batch"
    with pytest.raises(InvalidArgumentError, match=message):
        table.lookup(ids)
    with pytest.raises(InvalidArgumentError, match=message):
        table.lookup(torch.tensor([1]).expand(2**31))
    group = TableGroup({"a": TableConfig([Segment(1)]), "b": TableConfig([Segment(1)])})
    half = np.broadcast_to(np.int64(1), (2**30,))
    with pytest.raises(InvalidArgumentError, match=r"group: at most 2\^31 - 1 ids fit in one call, got 2147483648"):
        group.lookup({"a": half.reshape(2, -1), "b": half})


def test_the_skip_policy_passes_over_the_row_and_the_apply_policy_does_not() -> None:
    grads = np.array([[1.0], [np.nan], [1.0]], np.float32)
    skipping = HashTable(TableConfig([Segment(1)], nonfinite="skip"))
    result = skipping.apply_gradients([1, 2, 3], grads, learning_rates=1.0)
    assert (result.updated, result.skipped) == (2, 1)
    assert skipping.lookup([1, 2, 3]).flatten().tolist() == [-1.0, 0.0, -1.0]
    assert len(skipping) == 2
    applying = HashTable(TableConfig([Segment(1)], nonfinite="apply"))
    assert applying.apply_gradients([1, 2, 3], grads).updated == 3
    assert applying.lookup([2]).isnan().all()


def test_arrays_that_are_not_contiguous_are_copied(table: HashTable) -> None:
    ids = np.array([[1, 9], [8, 9]], np.int64)[:, 0]
    assert table.lookup(ids).tolist() == [[1.0, 2.0], [0.0, 0.0]]
    assert table.lookup(torch.tensor([[1, 8], [9, 9]]).t()).shape == (2, 2, 2)
    other = HashTable(TableConfig([Segment(2)]))
    other.apply_gradients([1, 2], np.ones((2, 4), np.float32)[:, ::2], learning_rates=1.0)
    other.apply_gradients([1, 2], torch.ones(2, 2).t(), learning_rates=1.0)
    assert other.lookup([1, 2]).tolist() == [[-2.0, -2.0]] * 2


def test_read_only_arrays_are_fine(table: HashTable) -> None:
    ids = np.array([1], np.int64)
    ids.setflags(write=False)
    assert table.lookup(ids).tolist() == [[1.0, 2.0]]
    assert table.contains(ids).all()
    grads = np.ones((1, 2), np.float32)
    grads.setflags(write=False)
    HashTable(TableConfig([Segment(2)])).apply_gradients(ids, grads)


def test_tensors_that_require_grad_are_detached(table: HashTable) -> None:
    other = HashTable(TableConfig([Segment(2)]))
    other.apply_gradients([1], torch.ones(1, 2, requires_grad=True), learning_rates=1.0)
    other.assign([2], torch.nn.Parameter(torch.ones(1, 2)))
    rows = other.lookup([1, 2])
    assert rows.tolist() == [[-1.0, -1.0], [1.0, 1.0]]
    assert not rows.requires_grad


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ([1, 2], r"row_splits must rise from 0 to the number of ids \(2\), got 1 to 2"),
        ([0, 1], r"row_splits must rise from 0 to the number of ids \(2\), got 0 to 1"),
        ([0, 3, 2], r"row_splits must rise from 0 .* falling in between"),
        ([], r"row_splits must have shape \(batch \+ 1,\), got \(0,\)"),
        ([[0, 2]], r"row_splits must have shape \(batch \+ 1,\), got \(1, 2\)"),
    ],
)
def test_row_splits_that_do_not_fit_are_refused(table: HashTable, splits: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"table 'user': {message}"):
        table.lookup_pooled([1, 2], splits)
    with pytest.raises(InvalidArgumentError, match=f"table 'user': {message}"):
        table.apply_pooled_gradients([1, 2], splits, ONE)


@pytest.mark.parametrize(
    ("combiner", "message"),
    [
        ("max", r"combiner must be 'sum', 'mean', 'sqrtn' or \('first_n', n\), got 'max'"),
        (("first_n", 0), r"first_n needs a length > 0, got 0"),
        (("first_n", "2"), r"first_n needs a length > 0, got '2'"),
        (("last_n", 2), r"combiner must be 'sum', 'mean', 'sqrtn' or"),
        (None, r"combiner must be 'sum', 'mean', 'sqrtn' or"),
    ],
)
def test_an_unknown_combiner_is_refused(table: HashTable, combiner: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"table 'user': {message}"):
        table.lookup_pooled([1], [0, 1], combiner)


def test_an_unknown_table_is_refused_with_the_closest_name() -> None:
    group = TableGroup({"user": TableConfig([Segment(1)]), "item": TableConfig([Segment(1)])})
    with pytest.raises(InvalidArgumentError, match=r"unknown table 'usr'; did you mean 'user'\?"):
        group.lookup({"usr": [1]})
    with pytest.raises(InvalidArgumentError, match="unknown table 'zzz'; the tables are item, user"):
        group["zzz"]
    with pytest.raises(
        InvalidArgumentError, match=r"grads must name the same tables as ids, \['user'\], got \['item'\]"
    ):
        group.apply_gradients({"user": [1]}, {"item": [[1.0]]})
    with pytest.raises(InvalidArgumentError, match="table 'user': grads must have shape"):
        group.apply_gradients({"user": [1], "item": [1]}, {"user": [[1.0, 2.0]], "item": [[1.0]]})
    assert len(group["item"]) == 0
