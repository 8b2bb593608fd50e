"""Random programs give the same rows on every engine as on plain dictionaries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.engines import StoreFactory, examples
from contracts.store_contract import StoreContract
from contracts.store_operations import (
    Apply,
    Assign,
    BesideCut,
    CloseReader,
    CompareAll,
    Discard,
    Erase,
    Evict,
    Follow,
    Gap,
    OpenReader,
    Operation,
    OperationBatch,
    Read,
    Reload,
    Restart,
    Touch,
    Train,
)
from monolith.tables import Segment, TableConfig
from monolith.tables.filters import SlidingHashFilter
from monolith.tables.initializers import Constant, Ones, RandomUniform
from monolith.tables.row_optimizers import Adagrad, DelayCompensated, Sgd

DAY = 86400
SHORT_SLOT = 7
COUNTED_SLOT = 9


def in_slot(slot: int, signature: int) -> int:
    return slot << 48 | signature


TABLES = {
    "item": TableConfig([Segment(3, initializer=Constant(0.25), optimizer=Sgd())], expire_days=10),
    "seen": TableConfig(
        [
            Segment(2, initializer=RandomUniform(-0.5, 1.5), optimizer=DelayCompensated(Sgd(), 0.5)),
            Segment(1, optimizer=DelayCompensated(Adagrad(), 2.0)),
        ],
        seed=11,
        nonfinite="apply",
    ),
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
READERS = ("log", "serving")

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
ID_LISTS = st.lists(IDS, max_size=6).map(tuple)
SEEDS = st.integers(0, 2**16)
TIMES = st.integers(0, 20 * DAY)
WORKERS = st.integers(0, 2)
NAMES = st.sampled_from(READERS)
TABLE_NUMBERS = st.integers(0, NUM_TABLES - 1)
BATCHES = st.builds(OperationBatch, ids=st.tuples(*[ID_LISTS] * NUM_TABLES), seed=SEEDS)
UPDATES = {
    "worker": WORKERS,
    "time": TIMES,
    "times_per_id": st.booleans(),
    "scale": st.sampled_from([1.0, 0.5, 0.3]),
    "retry": st.booleans(),
}
BESIDE_CUT: st.SearchStrategy[BesideCut] = st.one_of(
    st.builds(Train, batches=st.lists(BATCHES, min_size=1, max_size=2).map(tuple), **UPDATES),
    st.builds(Read, batch=BATCHES, worker=WORKERS),
    st.builds(Apply, **UPDATES),
    st.builds(Discard, worker=WORKERS),
    st.builds(Gap, batch=BATCHES, worker=WORKERS, ahead=st.booleans()),
    st.builds(Restart, worker=WORKERS),
    st.builds(Assign, table=TABLE_NUMBERS, ids=ID_LISTS, seed=SEEDS, time=TIMES, add=st.booleans()),
    st.builds(Evict, now=TIMES | st.just(-1), worker=WORKERS),
    st.builds(Touch, table=TABLE_NUMBERS, ids=ID_LISTS),
    st.builds(Erase, table=TABLE_NUMBERS, ids=ID_LISTS),
)
MEANWHILE = st.lists(BESIDE_CUT, max_size=2).map(tuple)
OPERATIONS: st.SearchStrategy[Operation] = st.one_of(
    BESIDE_CUT,
    BESIDE_CUT,
    st.builds(OpenReader, name=NAMES, at=st.sampled_from(["now", "cut", "beginning"]), meanwhile=MEANWHILE),
    st.builds(Follow, name=NAMES),
    st.builds(CloseReader, name=NAMES),
    st.builds(CompareAll, since=st.none() | NAMES),
    st.builds(Reload, by=st.sampled_from(["blocks", "files"]), in_place=st.booleans(), meanwhile=MEANWHILE),
)


def run(make_store: StoreFactory, program: list[Operation]) -> None:
    with StoreContract(make_store, TABLES) as contract:
        contract.run(program)


def test_random_programs_give_the_rows_of_the_reference(engine_name: str, make_store: StoreFactory) -> None:
    @examples(engine_name, most=60)
    @given(program=st.lists(OPERATIONS, max_size=10))
    def runs(program: list[Operation]) -> None:
        run(make_store, [*program, *(Follow(name=name) for name in READERS), CompareAll()])

    runs()


def test_rows_expire_by_one_clock_though_one_owner_alone_was_assigned_to(make_store: StoreFactory) -> None:
    ids = tuple(range(-200, 200))
    assigned = Assign(table=0, ids=(1,), seed=0, time=1, add=False)
    run(
        make_store,
        [assigned, Train(batches=(OperationBatch(ids=((), (), ids, ids), seed=0),), time=4000), CompareAll()],
    )


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_many_updates_of_few_ids_give_the_rows_of_the_reference(make_store: StoreFactory, seed: int) -> None:
    ids = tuple(range(seed, seed + 40))
    batches = [OperationBatch(ids=(ids, ids[::3], ids[::2] * 3, ids[::-1]), seed=seed * 100 + n) for n in range(30)]
    program = [Train(batches=(each,), time=n, times_per_id=n % 2 == 0, worker=n % 3) for n, each in enumerate(batches)]
    run(make_store, [*program, CompareAll()])


def test_workers_that_take_turns_see_the_rows_of_the_others(make_store: StoreFactory) -> None:
    ids = tuple(range(8))
    batches = [OperationBatch(ids=(ids, ids, ids, ids), seed=n) for n in range(6)]
    run(
        make_store,
        [
            Read(batch=batches[0], worker=0),
            Read(batch=batches[1], worker=1),
            Apply(worker=1),
            Read(batch=batches[2], worker=1),
            Read(batch=batches[3], worker=0),
            Apply(worker=0, retry=True),
            Restart(worker=1),
            Train(batches=(batches[4],), worker=1),
            Gap(batch=batches[5], worker=0),
            Train(batches=(batches[5],), worker=0),
            CompareAll(),
        ],
    )


def test_ids_that_vanish_and_reappear_reach_a_reader(make_store: StoreFactory) -> None:
    batch = OperationBatch(ids=((1, 2, 3), (), (1,), (4,)))
    run(
        make_store,
        [
            OpenReader(name="log"),
            Train(batches=(batch,), time=5),
            Follow(name="log"),
            Evict(now=11 * DAY),
            Train(batches=(OperationBatch(ids=((2,), (), (), ())),), time=12 * DAY),
            CompareAll(since="log"),
            Follow(name="log"),
            Evict(now=30 * DAY),
            Touch(table=0, ids=(2, 77)),
            OpenReader(name="serving", at="cut", meanwhile=(Train(batches=(batch,), time=31 * DAY),)),
            Follow(name="serving"),
            Follow(name="log"),
            CompareAll(),
        ],
    )


def test_an_erased_id_is_a_new_one_for_updates_in_flight_readers_and_admission(make_store: StoreFactory) -> None:
    counted = in_slot(COUNTED_SLOT, 1)
    batch = OperationBatch(ids=((1, 2, 3), (1,), (1, 2), (counted, counted)), seed=3)
    again = OperationBatch(ids=((1, 3), (1,), (1,), (counted,)), seed=4)
    run(
        make_store,
        [
            OpenReader(name="log"),
            Train(batches=(batch,), time=DAY),
            Train(batches=(batch,), time=DAY, worker=1),
            Follow(name="log"),
            Read(batch=again, worker=0),  # in flight while its ids are erased, beside one of another worker
            Read(batch=again, worker=1),
            *(Erase(table=table, ids=(1, 1, 77)) for table in range(3)),
            Erase(table=3, ids=(counted,)),
            CompareAll(since="log"),
            Follow(name="log"),
            Apply(worker=0, time=2 * DAY),
            Follow(name="log"),
            Apply(worker=1, time=2 * DAY),
            CompareAll(since="log"),
            OpenReader(
                name="serving", at="cut", meanwhile=(Erase(table=0, ids=(1, 2)), Erase(table=3, ids=(counted,)))
            ),
            Follow(name="serving"),
            Reload(by="files", meanwhile=(Erase(table=0, ids=(3,)),)),
            Train(batches=(again,), time=3 * DAY),
            CompareAll(),
        ],
    )


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("by", ["blocks", "files"])
def test_restoring_a_cut_undoes_everything_after_it(make_store: StoreFactory, *, by: str, in_place: bool) -> None:
    ids = tuple(range(8))
    batches = [OperationBatch(ids=(ids, ids, ids, ids), seed=n) for n in range(4)]
    behind: tuple[BesideCut, ...] = (
        Train(batches=(batches[1],), time=40 * DAY),
        Evict(now=39 * DAY),
        Read(batch=batches[2], worker=2),
        Restart(worker=1),
    )
    reload = Reload(by=by, in_place=in_place, meanwhile=behind)  # type: ignore[arg-type]  # pytest knows texts only
    run(
        make_store,
        [
            OpenReader(name="log"),
            Train(batches=(batches[0],), time=DAY, worker=0, retry=True),
            Train(batches=(batches[1],), time=2 * DAY, worker=1),
            reload,
            CompareAll(),
            OpenReader(name="log"),
            Train(batches=(batches[2],), time=3 * DAY, worker=0),
            Evict(now=-1),
            Follow(name="log"),
            reload,
            Train(batches=(batches[3],), time=3 * DAY, worker=2),
            CompareAll(),
        ],
    )


def test_admission_counts_survive_a_reload(make_store: StoreFactory) -> None:
    counted = OperationBatch(ids=((), (), (), (in_slot(COUNTED_SLOT, 1),) * 2))
    run(
        make_store,
        [
            Train(batches=(counted,)),
            Reload(),
            Train(batches=(counted,)),
            Reload(by="files", in_place=True, meanwhile=(Train(batches=(counted,)),)),
            Train(batches=(counted,)),
            CompareAll(),
        ],
    )
