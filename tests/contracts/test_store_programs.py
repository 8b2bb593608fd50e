"""Random programs give the same rows on every engine as on plain dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monolith.tables import Segment, TableConfig
from monolith.tables.filters import SlidingHashFilter
from monolith.tables.initializers import Constant, Ones
from monolith.tables.row_optimizers import Adagrad, Sgd
from monolith.tables.store import Store
from monolith.testing.store_contract import (
    Assign,
    Batch,
    CompareAll,
    Discard,
    Evict,
    FollowChanges,
    Operation,
    Reload,
    StoreContract,
    Train,
)

StoreFactory = Callable[[Mapping[str, TableConfig]], Store]

DAY = 86400
SHORT_SLOT = 7
COUNTED_SLOT = 9


def in_slot(slot: int, signature: int) -> int:
    return slot << 48 | signature


TABLES = {
    "item": TableConfig([Segment(3, initializer=Constant(0.25), optimizer=Sgd())], expire_days=10),
    "tag": TableConfig([Segment(1)], expire_days=0, nonfinite="skip"),
    "user": TableConfig(
        [
            Segment(2, initializer=Ones(), optimizer=Adagrad(initial_accumulator_value=0.5, weight_decay_factor=0.01)),
            Segment(5, optimizer=Adagrad()),
            Segment(1, optimizer=Sgd()),
        ],
        slot_expire_days={SHORT_SLOT: 1},
        expire_days=3,
        slot_min_counts={COUNTED_SLOT: 3, SHORT_SLOT: 1},
        admission=SlidingHashFilter(capacity=100_000),
    ),
}
NUM_TABLES = len(TABLES)

IDS = st.sampled_from(
    [
        -(2**63),
        2**63 - 1,
        -1,
        0,
        1,
        2,
        *(in_slot(SHORT_SLOT, n) for n in range(3)),
        *(in_slot(COUNTED_SLOT, n) for n in range(3)),
    ]
) | st.integers(-(2**63), 2**63 - 1)
ID_LISTS = st.lists(IDS, max_size=12).map(tuple)
SEEDS = st.integers(0, 2**16)
TIMES = st.integers(0, 20 * DAY)
BATCHES = st.builds(Batch, ids=st.tuples(*[ID_LISTS] * NUM_TABLES), seed=SEEDS)
OPERATIONS: st.SearchStrategy[Operation] = st.one_of(
    st.builds(
        Train,
        batches=st.lists(BATCHES, min_size=1, max_size=3).map(tuple),
        time=TIMES,
        times_per_id=st.booleans(),
        scale=st.sampled_from([1.0, 0.5, 0.3]),
        worker=st.integers(0, 2),
        retry=st.booleans(),
    ),
    st.builds(Discard, batch=BATCHES),
    st.builds(Assign, table=st.integers(0, NUM_TABLES - 1), ids=ID_LISTS, seed=SEEDS, time=TIMES, add=st.booleans()),
    st.builds(Evict, now=TIMES | st.just(-1)),
    st.builds(FollowChanges, forget=st.booleans()),
    st.builds(Reload, disturb=st.none() | BATCHES),
    st.just(CompareAll()),
)


@given(program=st.lists(OPERATIONS, max_size=12))
@settings(max_examples=60)
def test_random_programs_give_the_rows_of_the_reference(make_store: StoreFactory, program: list[Operation]) -> None:
    StoreContract(make_store, TABLES).run([*program, FollowChanges(), CompareAll()])


@pytest.mark.parametrize("seed", range(3))
def test_many_updates_of_few_ids_give_the_rows_of_the_reference(make_store: StoreFactory, seed: int) -> None:
    ids = tuple(range(seed, seed + 40))
    batches = [Batch(ids=(ids, ids[::2] * 3, ids[::-1]), seed=seed * 100 + n) for n in range(40)]
    program = [Train(batches=(batch,), time=n, times_per_id=n % 2 == 0) for n, batch in enumerate(batches)]
    StoreContract(make_store, TABLES).run([*program, CompareAll()])


def test_ids_that_vanish_and_come_back_reach_a_follower(make_store: StoreFactory) -> None:
    batch = Batch(ids=((1, 2, 3), (1,), (4,)))
    StoreContract(make_store, TABLES).run(
        [
            Train(batches=(batch,), time=5),
            FollowChanges(),
            Evict(now=11 * DAY),
            Train(batches=(Batch(ids=((2,), (), ())),), time=12 * DAY),
            FollowChanges(forget=True),
            Evict(now=30 * DAY),
            FollowChanges(),
            CompareAll(),
        ]
    )


def test_admission_counts_survive_a_reload(make_store: StoreFactory) -> None:
    counted = Batch(ids=((), (), (in_slot(COUNTED_SLOT, 1),) * 2))
    StoreContract(make_store, TABLES).run(
        [
            Train(batches=(counted,)),
            Reload(),
            Train(batches=(counted,)),
            Reload(disturb=counted),
            Train(batches=(counted,)),
            CompareAll(),
        ]
    )
