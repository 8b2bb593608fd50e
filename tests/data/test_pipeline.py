"""What each step of a pipeline does."""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from data.pipelines import batch_of, batches, plain, read_all, records
from monolith.data import Batch, Dataset, GeneratedDataset, InMemoryDataset, MergedDataset, Records
from monolith.errors import DataLossError
from monolith.tensors import Ragged

ORDER_OF_SEED_1 = [4, 3, 9, 7, 8, 6, 2, 5, 0, 1]


def numbers(count: int) -> InMemoryDataset[int]:
    return InMemoryDataset(range(count))


def test_batches_are_cut_exactly_across_blocks() -> None:
    made = list(batches([3, 0, 1, 7, 2]).batch(4))
    assert [batch.num_rows for batch in made] == [4, 4, 4, 1]
    joined = [number for batch in made for number in batch["number"].tolist()]
    assert joined == list(range(13))
    assert plain(made[1]) == plain(batch_of(4, 4))


def test_records_are_cut_exactly_and_keep_their_places() -> None:
    blocks = [
        Records(np.frombuffer(b"xxabcd", dtype=np.uint8), np.array([2, 2, 4, 2]), f"file {name}", 100 * place)
        for place, name in enumerate("pq")
    ]
    first, second = InMemoryDataset(blocks).batch(3)
    assert (list(first), list(second)) == ([b"ab", b"cd", b"ab"], [b"cd"])
    assert [first.place_of(index) for index in range(3)] == [
        "file p: record at offset 2",
        "file p: record at offset 4",
        "file q: record at offset 102",
    ]
    assert second.place_of(0) == "file q: record at offset 104"


def test_a_remainder_is_dropped_on_request() -> None:
    assert [batch.num_rows for batch in batches([5, 5]).batch(4, drop_remainder=True)] == [4, 4]
    assert list(numbers(3).batch(4, drop_remainder=True)) == []


def test_reading_may_resume_with_another_batch_size() -> None:
    with batches([3, 9]).batch(5).read() as reading:
        next(reading)
        position = reading.position
    (rest,) = batches([3, 9]).batch(7).read(position)
    assert rest["number"].tolist() == [5, 6, 7, 8, 9, 10, 11]


def test_shuffle_keeps_every_row_once_and_moves_most() -> None:
    made = list(batches([10] * 20).shuffle(100, seed=5))
    assert [batch.num_rows for batch in made] == [10] * 20
    order = [number for batch in made for number in batch["number"].tolist()]
    assert sorted(order) == list(range(200))
    assert sorted(order[:100]) == list(range(100))
    assert sum(place == number for place, number in enumerate(order)) < 20
    for batch in made:  # columns stay together
        assert [len(row) for row in batch["ids"].to_lists()] == [number % 3 for number in batch["number"].tolist()]
        assert [int(text) for text in batch["text"]] == batch["number"].tolist()


@pytest.mark.slow
def test_every_order_of_a_window_comes_up_equally_often() -> None:
    orders = Counter(tuple(numbers(4).shuffle(4, seed=seed)) for seed in range(4800))
    assert len(orders) == 24
    # 200 expected each; chi-square with 23 degrees of freedom is above 49.7 once in a thousand
    assert sum((count - 200) ** 2 / 200 for count in orders.values()) < 49.7


def test_the_order_of_a_seed_is_fixed_for_ever() -> None:
    assert list(numbers(10).shuffle(10, seed=1)) == ORDER_OF_SEED_1


def test_epochs_differ_in_order_not_in_elements() -> None:
    passes = list(numbers(50).shuffle(50, seed=1).repeat(3).batch(50))
    assert [sorted(each) for each in passes] == [list(range(50))] * 3
    assert passes[0] != passes[1] != passes[2] != passes[0]
    assert passes[0] == list(numbers(50).shuffle(50, seed=1))


def test_repeat_counts_passes_and_never_ends_without_a_number() -> None:
    assert list(numbers(2).repeat(3)) == [0, 1, 0, 1, 0, 1]
    assert list(numbers(2).repeat(0)) == []
    assert list(islice(numbers(2).repeat(), 5)) == [0, 1, 0, 1, 0]
    assert list(numbers(0).repeat()) == []


def test_map_drops_none_and_filter_takes_masks() -> None:
    assert list(numbers(6).map(lambda n: None if n % 2 else n * 10)) == [0, 20, 40]
    kept = list(batches([3, 3]).filter(lambda batch: batch["number"] > 2))
    assert [batch["number"].tolist() for batch in kept] == [[3, 4, 5]]
    assert list(numbers(6).filter(lambda n: n > 3)) == [4, 5]
    assert [list(r) for r in records([3]).filter(lambda _: np.array([True, False, True]))] == [
        [b"record 0", b"record 2"]
    ]
    with pytest.raises(ValueError, match=r"expected a bool mask of shape \[3\], got int64 \[3\]"):
        list(batches([3]).filter(lambda batch: batch["number"]))
    with pytest.raises(TypeError, match="got a mask for a int"):
        list(numbers(3).filter(lambda n: np.array([True])))


def test_take_and_skip() -> None:
    assert list(numbers(5).skip(2).take(2)) == [2, 3]
    assert list(numbers(5).skip(7)) == []
    assert list(numbers(2).take(7)) == [0, 1]


def test_cache_reads_its_source_once() -> None:
    calls: list[int] = []

    def make(number: int) -> int:
        calls.append(number)
        return number

    dataset = GeneratedDataset(make, 5).cache()
    assert list(islice(dataset, 2)) == [0, 1]  # not whole: read again
    assert list(dataset.repeat(3)) == [0, 1, 2, 3, 4] * 3
    assert calls == [0, 1, 0, 1, 2, 3, 4]


def test_parts_of_a_split_share_nothing_and_lose_nothing() -> None:
    parts = batches([100] * 30).split([8, 1, 1], seed=3)
    rows = [[number for batch in part for number in batch["number"].tolist()] for part in parts]
    assert sorted(number for part in rows for number in part) == list(range(3000))
    assert [abs(len(part) - expected) < 80 for part, expected in zip(rows, (2400, 300, 300), strict=True)] == [True] * 3


def test_a_split_by_a_column_keeps_a_user_on_one_side() -> None:
    users = Ragged.from_lists([[number % 50] for number in range(1000)])
    data: Dataset[Any] = InMemoryDataset([Batch({"user": users, "row": torch.arange(1000)}, num_rows=1000)])
    train, test = data.shuffle(1000).batch(64).split([3, 1], by="user")
    sides = [{row[0] for batch in side for row in batch["user"].to_lists()} for side in (train, test)]
    assert sides[0] & sides[1] == set()
    assert sides[0] | sides[1] == set(range(50))
    assert sum(batch.num_rows for side in (train, test) for batch in side) == 1000


def test_a_split_by_what_is_no_number_is_refused() -> None:
    data = InMemoryDataset([Batch({"x": torch.rand(2), "text": [b"a", b"b"]}, num_rows=2)])
    for column in ("x", "text"):
        with pytest.raises(TypeError, match=f"column '{column}' must have one integer"):
            list(data.split([1, 1], by=column)[0])
    with pytest.raises(TypeError, match="for elements that are a Batch, got a int"):
        list(numbers(2).split([1, 1], by="x")[0])


def test_merge_is_proportional_from_the_start() -> None:
    merged = MergedDataset([GeneratedDataset(lambda _: "a"), GeneratedDataset(lambda _: "b")], [0.7, 0.3])
    taken = list(islice(merged, 1000))
    for end in range(1, 1000, 37):
        assert abs(taken[:end].count("a") - 0.7 * end) <= 1


def test_merge_ends_with_the_last_or_with_the_first() -> None:
    parts: list[Dataset[Any]] = [InMemoryDataset("aa"), InMemoryDataset("bbbb")]
    assert "".join(MergedDataset(parts)) == "ababbb"
    assert "".join(MergedDataset(parts, stop_at_first_end=True)) == "abab"


def test_mark_last_marks_the_last_only() -> None:
    assert list(numbers(3).mark_last()) == [(0, False), (1, False), (2, True)]
    assert list(numbers(0).mark_last()) == []


@pytest.mark.usefixtures("nothing_left_behind")
def test_prefetch_keeps_the_order_and_leaves_no_thread() -> None:
    assert list(numbers(100).prefetch(3)) == list(range(100))
    for element in numbers(100).prefetch(3):  # left early, never closed
        if element == 5:
            break
    del element
    gc.collect()


def test_prefetch_reads_no_further_than_its_capacity() -> None:
    made: list[int] = []
    with GeneratedDataset(made.append).map(lambda _: 1).prefetch(3).read() as reading:
        next(reading)
        time.sleep(0.2)
        assert len(made) == 5  # one taken, three waiting, one at the door


def test_an_error_in_the_thread_comes_after_the_batches_made_before_it() -> None:
    def fails(number: int) -> int:
        if number == 3:
            raise DataLossError(f"file 'x': offset {number}")
        return number

    with GeneratedDataset(fails).prefetch(8).read() as reading:
        assert [next(reading) for _ in range(3)] == [0, 1, 2]
        position = reading.position
        with pytest.raises(DataLossError, match="offset 3") as caught:
            next(reading)
        assert reading.position == position
    assert any("fails" in str(entry.name) for entry in caught.traceback)


def test_a_reading_that_is_closed_has_ended() -> None:
    before = set(threading.enumerate())
    for dataset in (numbers(9), numbers(9).prefetch(2), numbers(9).repeat(), MergedDataset([numbers(9), numbers(9)])):
        reading = dataset.read()
        next(reading)
        reading.close()
        reading.close()
        assert list(reading) == []
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda: numbers(1).batch(0), "batch: size must be an integer >= 1, got 0"),
        (lambda: numbers(1).batch(True), "got True"),
        (
            lambda: numbers(1).batch(2.0),  # type: ignore[arg-type]
            "got 2.0",
        ),
        (lambda: numbers(1).shuffle(0), "shuffle: rows of a window"),
        (lambda: numbers(1).take(-1), "take: count"),
        (lambda: numbers(1).skip(-1), "skip: count"),
        (lambda: numbers(1).repeat(-1), "repeat: epochs"),
        (lambda: numbers(1).prefetch(-1), "prefetch: capacity"),
        (lambda: numbers(1).split([]), "split: ratios"),
        (lambda: numbers(1).split([1, 0]), "split: ratios must be positive"),
        (lambda: numbers(1).split([1, float("nan")]), "split: ratios must be positive"),
        (lambda: MergedDataset([numbers(1)], [1, 2]), "2 ratios for 1 datasets"),
        (lambda: MergedDataset([]), "at least one"),
        (lambda: GeneratedDataset(str, -1), "length of a generated dataset"),
    ],
)
def test_wrong_arguments_are_named(wrong: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        wrong()


def test_batches_that_do_not_fit_together_are_named() -> None:
    one, two = Batch({"a": torch.ones(1)}, num_rows=1), Batch({"b": torch.ones(1)}, num_rows=1)
    with pytest.raises(ValueError, match="differ in the columns a, b"):
        list(InMemoryDataset([one, two]).batch(2))
    other = Batch({"a": torch.ones(1, dtype=torch.float64)}, num_rows=1)
    with pytest.raises(ValueError, match=r"column 'a' of batch 1 and of batch 0 are torch.float64"):
        list(InMemoryDataset([one, other]).batch(2))
    with pytest.raises(TypeError, match="all have rows or none, got a Batch, too"):
        list(InMemoryDataset([1, one]).batch(2))


def test_readings_of_one_dataset_are_independent() -> None:
    dataset = numbers(6).shuffle(3).batch(2).prefetch(1)
    with dataset.read() as one, dataset.read() as two:
        pairs = list(zip(one, two, strict=True))
    assert [first for first, _ in pairs] == [second for _, second in pairs] == read_all(dataset)
