"""Admission: which occurrences of a new id are dropped, by every filter, and across processes."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monolith.config import Config
from monolith.errors import DataLossError, InvalidArgumentError
from monolith.tables import HashTable, Segment, TableConfig, TableGroup
from monolith.tables.filters import AdmissionFilter, NoFilter, ProbabilisticFilter, SlidingHashFilter, make_filter
from monolith.tables.row_optimizers import Sgd

ALL = [SlidingHashFilter(), SlidingHashFilter(1000, split_num=5), ProbabilisticFilter(), NoFilter()]
MAX_COUNT = 15
SLOT_SHIFT = 48
EXTREMES = [-(2**63), -1, 0, 1, 2**63 - 1]


def filtered_table(min_count: int, admission: AdmissionFilter | None = None, **options: Any) -> HashTable:
    chosen = SlidingHashFilter(capacity=100_000) if admission is None else admission
    segments = [Segment(1, optimizer=Sgd(learning_rate=0.1))]
    return HashTable(TableConfig(segments, min_count=min_count, admission=chosen, **options))


def step_down(table: HashTable, ids: list[int], *, dedup: bool = True, step: int = 0) -> None:
    """One call with gradient -1 for every occurrence: a trained occurrence adds 0.1."""
    table.apply_gradients(np.array(ids, np.int64), np.full((len(ids), 1), -1, np.float32), dedup=dedup, step=step)


def values_of(table: HashTable, ids: list[int]) -> list[float]:
    return [float(value) for value in table.lookup(np.array(ids, np.int64))[:, 0]]


# Configs


def test_kernels_name_the_kind_and_every_parameter() -> None:
    assert SlidingHashFilter().kernel() == ("sliding_hash", {"capacity": 3e8, "split_num": 7.0})
    assert ProbabilisticFilter().kernel() == ("probabilistic", {"equal_probability": 0.0})
    assert ProbabilisticFilter(equal_probability=True).kernel() == ("probabilistic", {"equal_probability": 1.0})
    assert NoFilter().kernel() is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize("chosen", ALL, ids=repr)
def test_configs_travel_as_dictionaries(chosen: AdmissionFilter) -> None:
    assert Config.from_dict(chosen.to_dict()) == chosen


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sliding_hash_filter", SlidingHashFilter()),
        ("probabilistic_filter", ProbabilisticFilter()),
        ("no_filter", NoFilter()),
    ],
)
def test_upstream_names_make_the_upstream_filters(name: str, expected: AdmissionFilter) -> None:
    assert make_filter(name) == expected


@pytest.mark.parametrize("name", ["", "sliding", "SLIDING_HASH_FILTER", "hash_filter"])
def test_any_other_name_is_rejected_with_the_upstream_message(name: str) -> None:
    with pytest.raises(ValueError, match=r"^Invalid filter type, please investigate and retry!$"):
        make_filter(name)


@pytest.mark.parametrize("options", [{"split_num": 4}, {"split_num": 1001}, {"capacity": 0}, {"capacity": 10**12 + 1}])
def test_sizes_that_cannot_work_are_refused_by_name(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"SlidingHashFilter: {next(iter(options))} must be in"):
        SlidingHashFilter(**options)


def test_thresholds_beyond_the_counter_are_refused_when_the_table_is_configured() -> None:
    filtered_table(15)
    with pytest.raises(ValueError, match=r"min_count must be <= 15 for SlidingHashFilter.*got 16"):
        filtered_table(16)
    with pytest.raises(ValueError, match=r"slot_min_counts of slot 3 must be <= 15"):
        filtered_table(0, slot_min_counts={3: 16})
    filtered_table(1000, ProbabilisticFilter())


# The counting rule


def test_worked_example_with_occurrences_applied_one_by_one() -> None:
    table = filtered_table(3)
    expected = [(0.0, 0.0), (0.1, 0.0), (0.3, 0.0), (0.5, 0.1)]
    for values in expected:
        step_down(table, [0, 0, 1], dedup=False)
        assert values_of(table, [0, 1]) == pytest.approx(values)


def test_worked_example_with_duplicates_summed() -> None:
    """Both occurrences of id 0 count after the call's decision, so its second call is still dropped (2 < 3)."""
    table = filtered_table(3)
    expected = [(0.0, 0.0), (0.0, 0.0), (0.2, 0.0), (0.4, 0.1)]
    for values in expected:
        step_down(table, [0, 0, 1])
        assert values_of(table, [0, 1]) == pytest.approx(values)


def test_five_occurrences_in_the_first_call_pass_only_one_by_one() -> None:
    summed, single = filtered_table(3), filtered_table(3)
    step_down(summed, [8] * 5)
    step_down(single, [8] * 5, dedup=False)
    assert values_of(summed, [8]) == [0.0]
    assert values_of(single, [8]) == pytest.approx([0.2])


@pytest.mark.parametrize("threshold", [1, 2, 7, 15])
def test_exactly_the_first_threshold_occurrences_are_dropped(threshold: int) -> None:
    table = filtered_table(threshold)
    for _ in range(threshold):
        step_down(table, EXTREMES)
    assert len(table) == 0
    step_down(table, EXTREMES)
    assert values_of(table, EXTREMES) == pytest.approx([0.1] * len(EXTREMES))


def test_what_was_dropped_is_reported() -> None:
    table = filtered_table(1)
    ids = np.array([1, 2, 2])
    first = table.apply_gradients(ids, np.ones((3, 1), np.float32))
    second = table.apply_gradients(ids, np.ones((3, 1), np.float32))
    assert (first.filtered, first.inserted, first.updated) == (2, 0, 0)
    assert (second.filtered, second.inserted) == (0, 2)


def test_thresholds_may_differ_by_slot() -> None:
    table = filtered_table(1, slot_min_counts={3: 0, 4: 2})
    ids = [(3 << SLOT_SHIFT) | 9, (4 << SLOT_SHIFT) | 9, (5 << SLOT_SHIFT) | 9]
    held = []
    for _ in range(3):
        step_down(table, ids)
        held.append([bool(each) for each in table.contains(np.array(ids))])
    assert held == [[True, False, False], [True, False, True], [True, True, True]]


def test_lookup_counts_nothing() -> None:
    table = filtered_table(1)
    for _ in range(5):
        table.lookup(np.array([4]))
        table.contains(np.array([4]))
    step_down(table, [4])
    assert len(table) == 0


def test_reinitialize_bypasses_the_filter_and_assign_does_not() -> None:
    table = filtered_table(1)
    table.reinitialize(np.array([1]))
    assert 1 in table
    for add in (False, True):
        write = table.assign_add if add else table.assign
        key, row = 20 + add, np.ones((1, 1), np.float32)
        write(np.array([key]), row)
        assert key not in table
        write(np.array([key]), row)
        assert key in table


def test_stored_ids_are_never_passed_to_the_filter() -> None:
    """Otherwise their counts would go on, and a removed id would come back at once."""
    table = filtered_table(3)
    table.reinitialize(np.array([1]))
    for _ in range(10):
        step_down(table, [1])
    table.erase(np.array([1]))
    step_down(table, [1])
    assert 1 not in table


def test_no_filter_ignores_thresholds() -> None:
    for table in (filtered_table(3, NoFilter()), HashTable(TableConfig([Segment(1)], min_count=3, admission=None))):
        step_down(table, [1])
        assert 1 in table


def test_equal_ids_of_two_tables_are_counted_apart() -> None:
    admission = SlidingHashFilter(capacity=1000)
    config = TableConfig([Segment(1)], min_count=2, admission=admission)
    tables = TableGroup({"item": config, "user": config})
    ids, gradients = np.array([5]), np.ones((1, 1), np.float32)
    for _ in range(2):
        tables["item"].apply_gradients(ids, gradients)
    tables["user"].apply_gradients(ids, gradients)
    tables["item"].apply_gradients(ids, gradients)
    assert 5 in tables["item"]
    assert 5 not in tables["user"]


def test_clear_discards_the_counts() -> None:
    table = filtered_table(1)
    step_down(table, [1])
    table.clear()
    step_down(table, [1])
    assert len(table) == 0


# Against a dictionary


class DictionaryTable:
    """The counting rule with exact counts and no memory limit."""

    def __init__(self, threshold: int) -> None:
        self.threshold = threshold
        self.counts: Counter[int] = Counter()
        self.rows: dict[int, float] = {}

    def admits(self, key: int, count: int) -> bool:
        if key in self.rows:
            return True
        before = self.counts[key]
        self.counts[key] = min(MAX_COUNT, before + count)
        return before >= self.threshold

    def apply(self, ids: list[int], *, dedup: bool) -> None:
        for key, count in Counter(ids).items() if dedup else [(each, 1) for each in ids]:
            if self.admits(key, count):
                self.rows[key] = self.rows.get(key, 0.0) + 0.1 * count

    def assign(self, key: int, value: float, *, add: bool) -> None:
        if self.admits(key, 1):
            self.rows[key] = self.rows.get(key, 0.0) * add + value


@settings(max_examples=60)
@given(threshold=st.integers(1, 15), seed=st.integers(0, 2**32), split_num=st.sampled_from([5, 7, 10]))
def test_random_operations_agree_with_exact_counts(threshold: int, seed: int, split_num: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    pool = [*EXTREMES, *(rng.getrandbits(64) - 2**63 for _ in range(60))]
    table = filtered_table(threshold, SlidingHashFilter(capacity=300_000, split_num=split_num))
    exact = DictionaryTable(threshold)
    for _ in range(60):
        action = rng.random()
        if action < 0.8:
            ids, dedup = rng.choices(pool, k=rng.randrange(20)), rng.random() < 0.5
            step_down(table, ids, dedup=dedup)
            exact.apply(ids, dedup=dedup)
        elif action < 0.95:
            key, add = rng.choice(pool), rng.random() < 0.5
            write = table.assign_add if add else table.assign
            write(np.array([key]), np.full((1, 1), 0.5, np.float32))
            exact.assign(key, 0.5, add=add)
        else:
            key = rng.choice(pool)
            table.erase(np.array([key]))
            exact.rows.pop(key, None)
            exact.counts.pop(key, None)
    assert sorted(table.ids().tolist()) == sorted(exact.rows)
    assert values_of(table, pool) == pytest.approx([exact.rows.get(key, 0.0) for key in pool], abs=1e-4)


def test_few_of_many_new_ids_are_admitted_early() -> None:
    """A million cells for 100,000 ids: shared counters are rare, and nothing is forgotten."""
    table = filtered_table(1, SlidingHashFilter(capacity=1_000_000))
    ids = np.arange(100_000, dtype=np.int64)
    gradients = np.ones((len(ids), 1), np.float32)
    table.apply_gradients(ids, gradients)
    assert len(table) < 0.005 * len(ids)
    table.apply_gradients(ids, gradients)
    assert len(table) == len(ids)


def test_ids_not_seen_for_long_are_evicted() -> None:
    table = filtered_table(1, SlidingHashFilter(capacity=1, split_num=5))
    step_down(table, [-5])
    others = np.arange(1_000_000, dtype=np.int64)
    table.apply_gradients(others, np.ones((len(others), 1), np.float32))
    step_down(table, [-5])
    assert -5 not in table


def test_result_does_not_depend_on_how_ids_are_batched() -> None:
    rng = np.random.default_rng(301)
    stream = rng.integers(0, 300, 4000)
    whole, parts = filtered_table(4), filtered_table(4)
    step_down(whole, stream.tolist(), dedup=False)
    for part in np.array_split(stream, 37):
        step_down(parts, part.tolist(), dedup=False)
    ids = list(range(300))
    assert values_of(whole, ids) == values_of(parts, ids)


# Draws


def admitted_share(chosen: ProbabilisticFilter, threshold: int, count: int, *, seed: int = 1) -> float:
    """Share of 20,000 new ids that enter in one call in which each is seen `count` times."""
    table = filtered_table(threshold, chosen, seed=seed)
    ids = np.repeat(np.arange(20_000, dtype=np.int64), count)
    table.apply_gradients(ids, np.ones((len(ids), 1), np.float32), step=1)
    return len(table) / 20_000


@pytest.mark.parametrize(("threshold", "count"), [(2, 1), (10, 1), (10, 3), (1000, 100)])
def test_probability_is_count_over_threshold(threshold: int, count: int) -> None:
    assert admitted_share(ProbabilisticFilter(), threshold, count) == pytest.approx(count / threshold, abs=0.018)


def test_as_many_occurrences_as_the_threshold_always_pass() -> None:
    assert admitted_share(ProbabilisticFilter(), 3, 3) == 1.0
    assert admitted_share(ProbabilisticFilter(), 3, 4) == 1.0


@pytest.mark.parametrize(("threshold", "count"), [(1, 1), (10, 1), (10, 4), (10, 10)])
def test_equal_probability_reaches_95_percent_at_the_threshold(threshold: int, count: int) -> None:
    each = 1 - 0.05 ** (1 / threshold)
    expected = 1 - (1 - each) ** count
    share = admitted_share(ProbabilisticFilter(equal_probability=True), threshold, count)
    assert share == pytest.approx(expected, abs=0.018)


def test_draws_of_later_steps_are_new() -> None:
    table = filtered_table(10, ProbabilisticFilter())
    ids = list(range(2000))
    for step in range(20):
        step_down(table, ids, step=step)
    assert len(table) / 2000 == pytest.approx(1 - 0.9**20, abs=0.05)


def test_draws_repeat_with_the_seed_and_differ_without() -> None:
    def admitted(seed: int) -> set[int]:
        table = filtered_table(4, ProbabilisticFilter(), seed=seed)
        step_down(table, list(range(500)), step=3)
        return set(table.ids().tolist())

    assert admitted(1) == admitted(1)
    assert admitted(1) != admitted(2)


# Saving


def blocks_of(table: HashTable) -> list[bytes]:
    cut = table.cut()
    try:
        return [block.data for block in cut.blocks()]
    finally:
        cut.release()


def load_blocks(table: HashTable, blocks: list[bytes]) -> None:
    table.native.core.load(blocks, (0, 1024), None)


def test_restored_counts_resume_where_they_stopped() -> None:
    ids = [*EXTREMES, *range(100, 400)]
    saved, restored = filtered_table(3), filtered_table(3)
    for repeat in range(3):
        step_down(saved, ids[repeat:])
    load_blocks(restored, blocks_of(saved))
    for table in (saved, restored):
        step_down(table, ids)
    assert sorted(saved.ids().tolist()) == sorted(restored.ids().tolist()) == sorted(ids[2:])


def test_cut_holds_the_counts_at_the_time_of_the_cut() -> None:
    table, restored = filtered_table(1), filtered_table(1)
    step_down(table, [1])
    cut = table.cut()
    step_down(table, [2])
    blocks = [block.data for block in cut.blocks()]
    cut.release()
    load_blocks(restored, blocks)
    step_down(restored, [1, 2])
    assert 1 in restored
    assert 2 not in restored


@pytest.mark.parametrize("other", [SlidingHashFilter(10_000_000), SlidingHashFilter(100_000, split_num=9)], ids=repr)
def test_counts_of_another_size_are_refused_and_leave_the_table_as_it_was(other: SlidingHashFilter) -> None:
    saved, target = filtered_table(1), filtered_table(1, other)
    step_down(saved, [1])
    step_down(target, [2])
    with pytest.raises(InvalidArgumentError, match="sliding_hash filter: saved with split_num 7"):
        load_blocks(target, blocks_of(saved))
    step_down(target, [1, 2])
    assert target.ids().tolist() == [2]


def test_counts_of_another_kind_are_refused() -> None:
    saved, target = filtered_table(1), filtered_table(1, ProbabilisticFilter())
    step_down(saved, [1])
    with pytest.raises((InvalidArgumentError, DataLossError), match="probabilistic filter"):
        load_blocks(target, blocks_of(saved))


CONTINUE_ELSEWHERE = """
import sys
from pathlib import Path
import numpy as np
from monolith.tables import HashTable, Segment, TableConfig
from monolith.tables.filters import SlidingHashFilter
from monolith.tables.row_optimizers import Sgd

segments = [Segment(1, optimizer=Sgd(learning_rate=0.1))]
table = HashTable(TableConfig(segments, min_count=3, admission=SlidingHashFilter(capacity=100_000)))
blocks = [path.read_bytes() for path in sorted(Path(sys.argv[1]).iterdir())]
table.native.core.load(blocks, (0, 1024), None)
ids = np.array([int(text) for text in sys.argv[2:]])
table.apply_gradients(ids, np.ones((len(ids), 1), np.float32))
sys.stdout.write(" ".join(str(key) for key in sorted(table.ids().tolist())))
"""


@pytest.mark.slow
def test_counts_saved_in_one_process_are_right_in_another(tmp_path: Path) -> None:
    """The hash is fixed, not seeded by the process: cells mean the same ids everywhere."""
    seen = {key: 1 + index % 4 for index, key in enumerate([*EXTREMES, *range(1000, 1400)])}
    table = filtered_table(3)
    for repeat in range(4):
        step_down(table, [key for key, count in seen.items() if count > repeat and repeat < 3])
    for number, block in enumerate(blocks_of(table)):
        (tmp_path / f"{number:04}").write_bytes(block)
    command = [sys.executable, "-c", CONTINUE_ELSEWHERE, str(tmp_path), *map(str, seen)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=50)
    expected = sorted(key for key, count in seen.items() if count >= 3)
    assert [int(text) for text in result.stdout.split()] == expected


def test_memory_of_the_filter_is_taken_bucket_by_bucket_as_ids_come() -> None:
    table = filtered_table(1, SlidingHashFilter())
    before = table.stats()["other_bytes"]
    assert before < 2**20
    step_down(table, [1])
    assert 0 < table.stats()["other_bytes"] - before < 2**18
