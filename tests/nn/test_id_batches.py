"""Reading one batch after the other: what is remembered of a batch changes nothing about the next."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import monolith as ml
from monolith.errors import InvalidArgumentError
from monolith.nn.embeddings.id_batch import IdBatch, IdBatchReader
from monolith.nn.embeddings.merge import PlacedSlot

NAMES = ["user", "item", "tags"]


@cache
def slots(**of_all: Any) -> list[PlacedSlot]:
    return list(ml.Embeddings({name: ml.Slot(2, **of_all) for name in NAMES}).placed.values())


def reader(**of_all: Any) -> IdBatchReader:
    return IdBatchReader(slots(**of_all), ["2-adagrad"])


@st.composite
def slot_inputs(draw: st.DrawFn, num_examples: int) -> Any:
    """Ids of one slot, lying in memory in one way or another."""
    kind = draw(st.sampled_from(["flat", "flat", "wide", "every second", "turned", "array", "ragged"]))
    per_example = draw(st.integers(0, 2))
    ids = torch.tensor(draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=12, max_size=12)))
    wide = ids[: num_examples * per_example].view(num_examples, per_example)
    return {
        "flat": ids[:num_examples],
        "wide": wide,
        "every second": ids[: 2 * num_examples : 2],
        "turned": ids[: num_examples * per_example].view(per_example, num_examples).t(),
        "array": ids[:num_examples].numpy(),
        "ragged": ml.Ragged.from_lists(wide.tolist()),
    }[kind]


@st.composite
def batches(draw: st.DrawFn) -> list[dict[str, Any]]:
    sizes = draw(st.lists(st.sampled_from([3, 3, 3, 0, 5]), min_size=2, max_size=5))
    return [{name: draw(slot_inputs(size)) for name in NAMES} for size in sizes]


def facts(read: IdBatch) -> list[list[Any]]:
    shape = read.shape
    arrays = (read.ids, read.buckets, read.table_splits, shape.sizes, shape.ids_per_example, shape.row_splits)
    return [[shape.num_examples], *(array.tolist() for array in arrays)]


@settings(max_examples=100)
@given(batches(), st.sampled_from([None, -1, 7]))
def test_a_batch_is_read_alike_whatever_was_read_before(
    given_batches: list[dict[str, Any]], padding: int | None
) -> None:
    used = reader(padding_id=padding)
    for batch in given_batches:
        assert facts(used.read(batch)) == facts(reader(padding_id=padding).read(batch))


@pytest.mark.parametrize(
    "changed",
    [
        {"item": torch.zeros(2, dtype=torch.int32)},
        {"item": torch.zeros(3, dtype=torch.int64)},
        {"item": torch.zeros(2, dtype=torch.int64, device="meta")},
        {"item": torch.zeros(2, dtype=torch.int64).to_sparse()},
        {"item": np.zeros(2, np.int32)},
        {"item": None},
    ],
)
def test_what_was_good_of_one_batch_is_checked_of_the_next(changed: dict[str, Any]) -> None:
    used = reader()
    good = {name: torch.tensor([1, 2]) for name in NAMES}
    used.read(good)
    with pytest.raises((TypeError, InvalidArgumentError), match=r"slot 'item': "):
        used.read(good | changed)
    assert facts(used.read(good)) == facts(reader().read(good))


def test_ids_that_do_not_fit_are_named_in_a_batch_like_the_last_one() -> None:
    used = reader(id_layout="raw")
    ids = torch.tensor([[1, 2], [3, 4]])
    used.read(dict.fromkeys(NAMES, ids))
    with pytest.raises(InvalidArgumentError, match=r"slot 'tags': .* got -4 in example 1"):
        used.read({"user": ids, "item": ids, "tags": torch.tensor([[1, 2], [3, -4]])})


@pytest.mark.parametrize("apart", [torch.arange(12)[::6], torch.arange(6).view(3, 2).t()])
def test_ids_that_lie_apart_are_read_after_those_that_lie_side_by_side(apart: torch.Tensor) -> None:
    used = reader()
    used.read(dict.fromkeys(NAMES, apart.contiguous()))
    batch = {"user": apart, "item": apart.contiguous(), "tags": apart + 5}
    assert facts(used.read(batch)) == facts(reader().read({name: ids.contiguous() for name, ids in batch.items()}))
