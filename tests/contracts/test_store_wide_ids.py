"""Slots that share a table, and any int64 as an id of each: the same rows on every engine as on plain dictionaries."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.engines import StoreFactory, examples
from contracts.one_worker import stamp
from contracts.store_contract import StoreContract
from contracts.store_operations import (
    Assign,
    CompareAll,
    Erase,
    Evict,
    Follow,
    OpenReader,
    Operation,
    OperationBatch,
    Reload,
    SlotId,
    Touch,
    Train,
)
from monolith.errors import InvalidArgumentError
from monolith.tables import Segment, TableConfig
from monolith.tables.filters import SlidingHashFilter
from monolith.tables.initializers import RandomUniform
from monolith.tables.row_optimizers import Adagrad, Sgd
from monolith.testing.reference_format import name_of_slot_id

DAY = 86400
LONG_SLOT, SHORT_SLOT, COUNTED_SLOT = 3, 7, 32767
SLOTS = (LONG_SLOT, SHORT_SLOT, COUNTED_SLOT)
EDGES = (-(2**63), -(2**48), -1, 0, 1, 2**48 - 1, 2**48, 2**54, 2**63 - 1)

TABLES = {
    "narrow": TableConfig([Segment(2)]),
    "shared": TableConfig(
        [Segment(2, initializer=RandomUniform(-0.5, 1.5), optimizer=Adagrad()), Segment(1, optimizer=Sgd())],
        wide_slots=SLOTS,
        slot_expire_days={SHORT_SLOT: 1},
        expire_days=10,
        slot_min_counts={COUNTED_SLOT: 2},
        admission=SlidingHashFilter(capacity=100_000),
        seed=5,
    ),
}

SLOT_IDS = st.builds(SlotId, st.sampled_from(SLOTS), st.sampled_from(EDGES) | st.integers(-(2**63), 2**63 - 1))
ID_LISTS = st.lists(SLOT_IDS, max_size=6).map(tuple)
SEEDS, TIMES = st.integers(0, 2**16), st.integers(0, 20 * DAY)
BATCHES = st.builds(OperationBatch, ids=st.tuples(st.just((4, 5)), ID_LISTS), seed=SEEDS)
OPERATIONS: st.SearchStrategy[Operation] = st.one_of(
    st.builds(Train, batches=st.lists(BATCHES, min_size=1, max_size=2).map(tuple), time=TIMES, retry=st.booleans()),
    st.builds(Assign, table=st.just(1), ids=ID_LISTS, seed=SEEDS, time=TIMES, add=st.booleans()),
    st.builds(Evict, now=TIMES | st.just(-1)),
    st.builds(Touch, table=st.just(1), ids=ID_LISTS),
    st.builds(Erase, table=st.just(1), ids=ID_LISTS),
    st.builds(OpenReader, name=st.just("log"), at=st.sampled_from(["now", "cut", "beginning"])),
    st.builds(Follow, name=st.just("log")),
    st.builds(Reload, by=st.sampled_from(["blocks", "files"]), in_place=st.booleans()),
)
EVERY_EDGE = tuple(SlotId(slot, number) for slot in SLOTS for number in EDGES)


def test_random_programs_give_the_rows_of_the_reference(engine_name: str, make_store: StoreFactory) -> None:
    @examples(engine_name, most=40)
    @given(program=st.lists(OPERATIONS, max_size=8))
    def runs(program: list[Operation]) -> None:
        with StoreContract(make_store, TABLES) as contract:
            contract.run([*program, Follow(name="log"), CompareAll()])

    runs()


def test_equal_ids_of_slots_have_rows_of_their_own(make_store: StoreFactory) -> None:
    batches = [OperationBatch(ids=((), EVERY_EDGE), seed=seed) for seed in range(3)]
    program: list[Operation] = [Train(batches=(batches[0],), time=1), Train(batches=tuple(batches[1:]), time=DAY)]
    with StoreContract(make_store, TABLES) as contract:
        contract.run([*program, Reload(by="files"), Touch(table=1, ids=EVERY_EDGE), Evict(now=5 * DAY), CompareAll()])
        contract.run([Erase(table=1, ids=EVERY_EDGE[::2]), CompareAll()])


def test_a_key_that_does_not_determine_its_bucket_is_rejected_without_it(new_store: StoreFactory) -> None:
    store = new_store({"shared": TABLES["shared"]})
    row = name_of_slot_id(SHORT_SLOT, -1, SLOTS)
    keys, splits = torch.tensor([5, row.key]), torch.tensor([0, 2])
    with pytest.raises(InvalidArgumentError, match=f"shared.*{row.key}"):
        store.plan(keys, splits, stamp=stamp(0))
    with pytest.raises(InvalidArgumentError, match=f"shared.*{row.key}"):
        store.touch("shared", keys)
    with pytest.raises(InvalidArgumentError, match=f"shared.*{row.key}"):
        store.erase("shared", keys)


@pytest.mark.parametrize("bucket", [1024, -1])
def test_a_bucket_that_is_none_is_refused(new_store: StoreFactory, bucket: int) -> None:
    store = new_store({"shared": TABLES["shared"]})
    buckets = torch.tensor([bucket], dtype=torch.int16)
    with pytest.raises(InvalidArgumentError, match="1024"):
        store.plan(torch.tensor([-5]), torch.tensor([0, 1]), stamp=stamp(0), buckets=buckets)
