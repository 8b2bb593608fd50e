"""Wrong calls: refused with the name of the slot and what to do, and no row changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import monolith as ml
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.tables import LocalStore

SGD = ml.row_optimizers.Sgd(learning_rate=1.0)


@pytest.fixture
def emb() -> Iterator[ml.Embeddings]:
    """Two slots with one trained row each; afterwards nothing else was trained and no plan is left open."""
    slots = {"user": ml.Slot(2, initializer=ml.initializers.Zeros()), "tags": ml.Slot(3)}
    made = ml.Embeddings(slots, SGD)
    made({"user": torch.tensor([1]), "tags": torch.tensor([1])}).concat().sum().backward()
    made.step()
    before = made.lookup("user", torch.tensor([1])), made.lookup("tags", torch.tensor([1]))
    yield made
    assert made.num_rows == 2
    assert torch.equal(made.lookup("user", torch.tensor([1])), before[0])
    assert torch.equal(made.lookup("tags", torch.tensor([1])), before[1])
    made.discard()
    assert made.store.stats().open_plans == 0


def unchecked(values: list[int], splits: list[int], dtype: torch.dtype = torch.int64) -> ml.Ragged:
    return ml.Ragged(torch.tensor(values), torch.tensor(splits, dtype=dtype), validate=False)


BAD_IDS: list[tuple[Any, type[Exception], str]] = [
    (
        torch.tensor([1, 2], dtype=torch.int32),
        TypeError,
        r"ids must be int64, got torch.int32; write ids.to\(torch.int64\)",
    ),
    (torch.tensor([1.0, 2.0]), TypeError, r"ids must be int64, got torch.float32"),
    (np.array([1, 2], np.uint64), TypeError, r"ids must be int64, got uint64; write ids.astype\(np.int64\)"),
    (ml.Ragged.from_lists([[1], [2]], dtype=torch.int32), TypeError, r"ids must be int64, got torch.int32"),
    ([[1], [2]], TypeError, r"ids must be a Ragged or an int64 tensor, got list; write Ragged.from_lists\(ids\)"),
    (None, TypeError, r"ids must be a Ragged or an int64 tensor, got NoneType"),
    ("12", TypeError, r"ids must be a Ragged or an int64 tensor, got str"),
    (torch.tensor([1, 2]).to_sparse(), TypeError, r"ids must be a dense tensor, got torch.sparse_coo"),
    (
        torch.tensor(1),
        InvalidArgumentError,
        r"ids must be \[examples\], \[examples, ids of each\] or a Ragged, got shape \(\)",
    ),
    (torch.zeros(2, 1, 1, dtype=torch.int64), InvalidArgumentError, r"got shape \(2, 1, 1\)"),
    (ml.Ragged.from_lists([[[1]], [[2]]]), InvalidArgumentError, r"ids must be a Ragged of plain numbers"),
    (torch.tensor([1, 2, 3]), InvalidArgumentError, r"the batch has 2 examples by slot 'user', but 3 here"),
    (ml.Ragged.from_lists([[1]]), InvalidArgumentError, r"the batch has 2 examples by slot 'user', but 1 here"),
    (
        unchecked([1, 2], [1, 1, 2]),
        InvalidArgumentError,
        r"row_splits must rise from 0 to the number of ids \(2\), got 1 to 2",
    ),
    (unchecked([1, 2], [0, 3, 2]), InvalidArgumentError, r"got 0 to 2, decreasing in between"),
    (
        unchecked([1, 2], [0, 1, 3]),
        InvalidArgumentError,
        r"row_splits must rise from 0 to the number of ids \(2\), got 0 to 3",
    ),
    (
        unchecked([1, 2], [0, 1, 1]),
        InvalidArgumentError,
        r"row_splits must rise from 0 to the number of ids \(2\), got 0 to 1",
    ),
    (unchecked([1, 2], [0, -1, 2]), InvalidArgumentError, r"decreasing in between"),
    (unchecked([1, 2], []), InvalidArgumentError, r"row_splits must be int64 \[examples \+ 1\] on the CPU"),
    (unchecked([1, 2], [0, 1, 2], torch.int32), InvalidArgumentError, r"row_splits must be int64 .* got torch.int32"),
]


@pytest.mark.parametrize(("ids", "kind", "message"), BAD_IDS)
def test_bad_ids_are_refused_by_the_name_of_their_slot(
    emb: ml.Embeddings, ids: Any, kind: type[Exception], message: str
) -> None:
    good = torch.tensor([1, 2])
    with torch.no_grad():  # what was found good of one batch is not taken for granted of the next
        emb({"user": good, "tags": good})
    with pytest.raises(kind, match=r"slot 'tags': .*" + message):
        emb({"user": good, "tags": ids})


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"user": torch.tensor([1])}, r"slot 'tags': the batch has no ids for it; it has 'user'"),
        ({"user": torch.tensor([1]), "tag": torch.tensor([1])}, r"slot 'tags': .*; did you mean 'tag'\?"),
        ({}, r"slot 'user': the batch has no ids for it; it has nothing"),
    ],
)
def test_a_missing_slot_is_named(emb: ml.Embeddings, batch: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        emb(batch)


@pytest.mark.parametrize("batch", [None, [torch.tensor([1])], torch.tensor([1])])
def test_a_batch_is_a_mapping(emb: ml.Embeddings, batch: Any) -> None:
    with pytest.raises(TypeError, match="batch must map slot names to ids, got"):
        emb(batch)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (
            torch.tensor([1, -1]),
            r"got -1 in example 1; .*'int64'.*, the default, .* Slot\(padding_id=-1\) leaves it out",
        ),
        (torch.tensor([[1, 2], [2**48, 3]]), r"got 281474976710656 in example 1; .* takes any int64$"),
        (ml.Ragged.from_lists([[], [5, -(2**63)]]), r"got -9223372036854775808 in example 1; .* takes any int64, and"),
    ],
)
def test_ids_beyond_raw_are_reported_with_their_example_and_a_remedy(ids: Any, message: str) -> None:
    emb = ml.Embeddings({"user": ml.Slot(2), "tags": ml.Slot(2, id_layout="raw")}, SGD)
    with pytest.raises(
        InvalidArgumentError, match=r"slot 'tags': ids of id_layout='raw' must be in \[0, 2\^48\), " + message
    ):
        emb({"user": torch.tensor([1, 2]), "tags": ids})


def test_ids_that_carry_another_slot_are_refused() -> None:
    emb = ml.Embeddings({"user": ml.Slot(2, id_layout="v2", number=5)}, SGD)
    wrong = int(ml.ids.pack_v2(6, torch.tensor(3)))
    with pytest.raises(
        InvalidArgumentError, match=rf"slot 'user': ids .* carry the slot's number 5 .* got {wrong} in example 0;"
    ):
        emb({"user": torch.tensor([wrong])})


@pytest.mark.parametrize(
    "empty", [torch.empty(0, dtype=torch.int64), ml.Ragged.from_lists([])], ids=["tensor", "ragged"]
)
def test_an_empty_batch_is_a_step_like_any_other(emb: ml.Embeddings, empty: Any) -> None:
    x = emb({"user": empty, "tags": empty})
    assert {name: tuple(output.shape) for name, output in x.items()} == {"user": (0, 2), "tags": (0, 3)}
    x.concat().sum().backward()
    applied = emb.step()
    assert (applied.updated, applied.inserted) == (0, 0)
    assert emb.global_step == 2


def test_examples_without_ids_give_zeros_and_learn_nothing(emb: ml.Embeddings) -> None:
    nothing = ml.Ragged.from_lists([[], []])
    x = emb({"user": nothing, "tags": torch.empty(2, 0, dtype=torch.int64)})
    assert not x.concat().any()
    x.concat().sum().backward()
    assert emb.step().updated == 0


def test_a_step_without_gradients_reports_the_missing_backward(emb: ml.Embeddings) -> None:
    with pytest.raises(
        FailedPreconditionError, match=r"step: there are no gradients since the last step; call backward"
    ):
        emb.step()
    x = emb({"user": torch.tensor([1]), "tags": torch.tensor([1])})
    with pytest.raises(FailedPreconditionError, match="no gradients"):
        emb.step()
    del x


@pytest.mark.parametrize("scale", [math.nan, math.inf, torch.tensor(math.nan)])
def test_a_scale_that_is_not_finite_changes_nothing(emb: ml.Embeddings, scale: Any) -> None:
    emb({"user": torch.tensor([1]), "tags": torch.tensor([1])})["user"].sum().backward()
    with pytest.raises(
        InvalidArgumentError, match=r"step: scale must be finite, got .*; is a gradient NaN or infinite\?"
    ):
        emb.step(scale=scale)


def test_nonfinite_rows_can_be_passed_over_instead() -> None:
    emb = ml.Embeddings({"user": ml.Slot(2, initializer=ml.initializers.Zeros())}, SGD, nonfinite="skip")
    x = emb({"user": torch.tensor([1, 2])})
    (x["user"] * torch.tensor([[1.0], [math.nan]])).sum().backward()
    applied = emb.step()
    assert (applied.updated, applied.skipped) == (1, 1)


@pytest.mark.parametrize("time", [torch.tensor([1, 2, 3]), torch.tensor([1.0]), torch.tensor([[1]])])
def test_times_are_one_or_one_per_example(emb: ml.Embeddings, time: torch.Tensor) -> None:
    with pytest.raises(InvalidArgumentError, match=r"time must be one number or int64 \[1\], one for each example"):
        emb({"user": torch.tensor([1]), "tags": torch.tensor([1])}, time=time)


@pytest.mark.parametrize("time", [-1, 2**32, torch.tensor([-1])])
def test_times_are_unix_seconds(emb: ml.Embeddings, time: Any) -> None:
    emb({"user": torch.tensor([1]), "tags": torch.tensor([1])}, time=time)["user"].sum().backward()
    with pytest.raises(InvalidArgumentError, match=r"time must be Unix seconds in \[0, 2\^32\)"):
        emb.step()


def test_a_negative_global_step_is_refused(emb: ml.Embeddings) -> None:
    emb({"user": torch.tensor([1]), "tags": torch.tensor([1])})["user"].sum().backward()
    with pytest.raises(InvalidArgumentError, match="step must be >= 0"):
        emb.step(global_step=-1)


def test_a_plan_of_another_module_is_refused(emb: ml.Embeddings) -> None:
    other = ml.Embeddings({"user": ml.Slot(2), "tags": ml.Slot(3)}, SGD)
    planned = other.plan({"user": torch.tensor([1]), "tags": torch.tensor([1])})
    with pytest.raises(InvalidArgumentError, match="plan must come from this store"):
        emb(planned)


MAKERS: list[tuple[Callable[[], ml.Embeddings], type[Exception], str]] = [
    (lambda: ml.Embeddings({}), InvalidArgumentError, r"at least one slot is needed"),
    (lambda: ml.Embeddings({"user": 16}), TypeError, r"slot 'user': expected Slot\(...\), got 16"),  # type: ignore[dict-item]
    (lambda: ml.Embeddings({3: ml.Slot(2)}), TypeError, r"names of slots must be non-empty texts, got 3"),  # type: ignore[dict-item]
    (lambda: ml.Embeddings({"": ml.Slot(2)}), TypeError, r"names of slots must be non-empty texts, got ''"),
    (
        lambda: ml.Embeddings({"user": ml.Slot(2)}, torch.optim.Adagrad),  # type: ignore[arg-type]
        TypeError,
        r"optimizer must be one of monolith.row_optimizers, got .*; torch's optimizers are for dense parameters",
    ),
    (
        lambda: ml.Embeddings({"user": ml.Slot(2)}, learning_rate=-1.0),
        ValueError,
        r"Embeddings: learning_rate must be finite and >= 0, got -1.0",
    ),
    (lambda: ml.Embeddings({"user": ml.Slot(2)}, store=7), TypeError, r"store must be a Store or make one from"),  # type: ignore[arg-type]
    (
        lambda: ml.Embeddings({"user": ml.Slot(2, min_count=16)}),
        InvalidArgumentError,
        r"must be <= 15 for SlidingHashFilter",
    ),
    (
        lambda: ml.Embeddings({"user": ml.Slot(2)}, nonfinite="ignore"),  # type: ignore[arg-type]
        InvalidArgumentError,
        r"nonfinite must be 'raise', 'skip' or 'apply', got 'ignore'",
    ),
]


@pytest.mark.parametrize(("make", "kind", "message"), MAKERS)
def test_a_module_that_cannot_be_is_refused(
    make: Callable[[], ml.Embeddings], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        make()


def test_a_store_of_other_slots_is_refused_by_their_names() -> None:
    wide = ml.Embeddings({"user": ml.Slot(4), "item": ml.Slot(4)}, SGD)
    with pytest.raises(
        FailedPreconditionError, match=r"slots 'user', 'item': the store has no table '2-sgd' .* another dim"
    ):
        ml.Embeddings({"user": ml.Slot(2), "item": ml.Slot(2)}, SGD, store=wide.store)
    same_name = LocalStore({"2-sgd": ml.TableConfig([ml.Segment(3)])})
    with pytest.raises(
        FailedPreconditionError, match=r"slots 'user': table '2-sgd' of the store has segments \[\(3, 'sgd'\)\]"
    ):
        ml.Embeddings({"user": ml.Slot(2)}, SGD, store=same_name)
    more = ml.Embeddings({"user": ml.Slot(2), "item": ml.Slot(3)}, SGD)
    with pytest.raises(FailedPreconditionError, match=r"the store has tables \['3-sgd'\] that no slot uses"):
        ml.Embeddings({"user": ml.Slot(2)}, SGD, store=more.store)


def test_texts_raise_an_error_that_explains_how_to_make_ids() -> None:
    emb = ml.Embeddings({"item": ml.Slot(dim=2)})
    texts: Any = ["shoe", "hat"]
    with pytest.raises(TypeError, match=r"got list; texts become ids by monolith\.data\.text_ids\('item', texts\)"):
        emb({"item": texts})
