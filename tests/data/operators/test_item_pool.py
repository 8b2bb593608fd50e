"""The item pool is a bounded queue for each channel, and draws as it says."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data.operators.item_pool_reference import ReferencePool
from data.operators.sample_rows import few, rows_of
from monolith.data import Batch
from monolith.data.operators import Draws, ItemPool, PoolConfig
from monolith.errors import ResourceExhaustedError
from monolith.tensors import Ragged

COLUMNS = ("tags", "price", "title")
PUSHES = st.lists(
    st.lists(st.tuples(st.integers(1, 2), st.one_of(st.integers(0, 9), st.sampled_from([-1, 1 << 62]))), max_size=12),
    max_size=5,
)


def features_of(numbers: list[int]) -> Batch:
    """Features that tell by which row they were pushed."""
    return Batch(
        {
            "tags": Ragged.from_lists([[number] * (number % 3) for number in numbers]),
            "price": torch.tensor(numbers, dtype=torch.float32).view(-1, 1),
            "title": [f"t{number}".encode() for number in numbers],
        },
        num_rows=len(numbers),
    )


def push(pool: ItemPool, rows: list[tuple[int, int]], first: int = 0) -> None:
    numbers = list(range(first, first + len(rows)))
    channels, ids = (np.array([row[side] for row in rows], dtype=np.int64) for side in (0, 1))
    pool.push(channels, ids, features_of(numbers))


def state_of(pool: ItemPool) -> dict[int, list[Any]]:
    return {
        channel: list(
            zip(items.ids.tolist(), items.seen.tolist(), items.drawn.tolist(), rows_of(features), strict=True)
        )
        for channel, items, features in pool.channels()
    }


@few
@given(PUSHES, st.integers(1, 6))
def test_queues_are_bounded_and_the_first_version_of_an_item_stays(
    pushes: list[list[tuple[int, int]]], max_items: int
) -> None:
    pool = ItemPool(COLUMNS, PoolConfig(max_items=max_items, start_items=0))
    reference = ReferencePool(max_items, 0)
    first = 0
    for rows in pushes:
        push(pool, rows, first)
        numbered = rows_of(features_of(list(range(first, first + len(rows)))))
        reference.push([(*row, features) for row, features in zip(rows, numbered, strict=True)])
        first += len(rows)
    expected = {
        channel: [(item.id, item.seen, item.drawn, item.features) for item in queue]
        for channel, queue in reference.channels.items()
    }
    assert state_of(pool) == expected
    assert len(pool) == sum(map(len, expected.values()))
    again = ItemPool(COLUMNS, PoolConfig(max_items=max_items, start_items=0))
    again.load_state_dict(pool.state_dict())
    assert state_of(again) == expected


@few
@given(
    PUSHES,
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9), st.floats(0, 1, exclude_max=True)), max_size=12),
)
def test_draws_are_uniform_over_the_other_items_of_the_channel(
    pushes: list[list[tuple[int, int]]], start: int, wanted: list[tuple[int, int, float]]
) -> None:
    pool = ItemPool((), PoolConfig(max_items=5, start_items=start))
    reference = ReferencePool(5, start)
    for rows in pushes:
        push(pool, rows)
        reference.push([(*row, None) for row in rows])
    drawn = draw(pool, [want[0] for want in wanted], [want[1] for want in wanted], [want[2] for want in wanted])
    expected = [reference.draw(*want) for want in wanted]
    assert drawn.found.tolist() == [each is not None for each in expected]
    there = [each for each in expected if each is not None]
    assert drawn.ids.tolist() == [each[0].id for each in there]
    assert drawn.draw_counts.tolist() == [each[1] for each in there]
    assert drawn.ages.tolist() == pytest.approx([each[2] for each in there])
    assert np.exp(drawn.log_q).tolist() == pytest.approx([each[3] for each in there])


def draw(
    pool: ItemPool,
    channels: list[int],
    own: list[int],
    uniforms: list[float],
    *,
    easy_share: float = 0.0,
    alpha: float = 0.0,
    seed: int = 0,
) -> Draws:
    numbers = np.random.default_rng(seed).random((len(channels), 3))
    if uniforms:
        numbers[:, 2] = uniforms
    return pool.draw(
        np.array(channels, dtype=np.int64), np.array(own, dtype=np.int64), numbers, easy_share=easy_share, alpha=alpha
    )


@pytest.mark.parametrize("alpha", [0.0, 0.75, 1.0, -0.5])
def test_items_come_out_in_proportion_to_a_power_of_how_often_they_were_seen(alpha: float) -> None:
    pool = ItemPool((), PoolConfig(max_items=10, start_items=0))
    seen = {10: 1, 20: 4, 30: 16, 40: 9}
    push(pool, [(3, item) for item, count in seen.items() for _ in range(count)])
    count = 60_000
    drawn = draw(pool, [3] * count, [20] * count, [], alpha=alpha, seed=1)
    weights = {item: number**alpha for item, number in seen.items() if item != 20}
    shares = Counter(drawn.ids.tolist())
    for item, weight in weights.items():
        chance = weight / sum(weights.values())
        assert shares[item] / count == pytest.approx(chance, abs=0.012)
        assert np.exp(drawn.log_q[drawn.ids == item]).tolist() == pytest.approx([chance] * shares[item])
    assert shares[20] == 0
    assert sorted(drawn.draw_counts[drawn.ids == 40].tolist()) == list(range(1, shares[40] + 1))


def test_easy_draws_come_from_all_channels_in_proportion_to_their_size() -> None:
    pool = ItemPool((), PoolConfig(max_items=100, start_items=5))
    push(pool, [(1, item) for item in range(10)] + [(2, 100 + item) for item in range(30)] + [(5, 7)])
    count = 60_000
    drawn = draw(pool, [1] * count, [3] * count, [], easy_share=0.4, seed=2)
    own = float((drawn.ids < 100).mean())
    assert own == pytest.approx(0.6 + 0.4 * 10 / 40, abs=0.01)
    assert np.exp(drawn.log_q[drawn.ids >= 100]).tolist() == pytest.approx(
        [0.4 * 30 / 40 / 30] * int((drawn.ids >= 100).sum())
    )
    hard = np.exp(drawn.log_q[drawn.ids < 100])
    assert hard.tolist() == pytest.approx([(0.6 + 0.4 * 10 / 40) / 9] * len(hard))
    assert drawn.found.all()
    small = draw(pool, [5] * count, [0] * count, [], easy_share=0.4, seed=3)
    assert float(small.found.mean()) == pytest.approx(0.4, abs=0.01)


def test_nothing_but_the_own_item_is_no_draw() -> None:
    pool = ItemPool((), PoolConfig(max_items=10, start_items=0))
    push(pool, [(3, 7)])
    for alpha in (0.0, 1.0):
        assert not draw(pool, [3, 3], [7, 7], [0.0, 0.99], alpha=alpha).found.any()
        assert draw(pool, [3], [8], [0.5], alpha=alpha).ids.tolist() == [7]
    assert not draw(ItemPool(()), [3], [8], [0.5]).found.any()


def test_the_extremes_of_a_draw_stay_inside_the_queue() -> None:
    pool = ItemPool((), PoolConfig(max_items=10, start_items=0))
    push(pool, [(3, item) for item in range(6)])
    below_one = float(np.nextafter(1.0, 0.0))
    for alpha in (0.0, 1.0):
        for own in (0, 5, 99):
            drawn = draw(pool, [3, 3], [own, own], [0.0, below_one], alpha=alpha)
            assert own not in drawn.ids.tolist()
            assert drawn.ids.tolist() == [1 if own == 0 else 0, 4 if own == 5 else 5]


def test_memory_stays_bounded_however_many_items_pass() -> None:
    pool = ItemPool(COLUMNS, PoolConfig(max_items=50, start_items=0))
    for first in range(0, 40_000, 400):
        push(pool, [(3, first + item) for item in range(400)], first)
    assert pool.sizes() == {3: 50}
    assert pool._features.num_rows <= 2 * 50 + 1024 + 400
    assert state_of(pool)[3][-1][3] == rows_of(features_of([39_999]))[0]


def test_too_many_channels_are_an_error() -> None:
    pool = ItemPool((), PoolConfig(max_items=5, start_items=0, max_channels=2))
    push(pool, [(1, 1), (2, 1)])
    with pytest.raises(ResourceExhaustedError, match=r"more than 2 channels, the next one is 9; is the channel column"):
        push(pool, [(9, 1)])
    assert pool.sizes() == {1: 1, 2: 1}


def test_a_smaller_pool_restores_the_newest() -> None:
    pool = ItemPool(COLUMNS, PoolConfig(max_items=10, start_items=0))
    push(pool, [(3, item) for item in range(10)])
    small = ItemPool(COLUMNS, PoolConfig(max_items=4, start_items=0))
    small.load_state_dict(pool.state_dict())
    assert state_of(small) == {3: state_of(pool)[3][-4:]}
    with pytest.raises(ValueError, match="saved with the columns price, tags, title, this one has brand"):
        ItemPool(("brand",)).load_state_dict(pool.state_dict())


def test_features_of_another_kind_are_refused_before_anything_changes() -> None:
    pool = ItemPool(("tags", "price"), PoolConfig(max_items=10, start_items=0))
    push(pool, [(3, 1)])
    wrong = Batch({"tags": Ragged.from_lists([[1]]), "price": torch.ones(1, 2)}, num_rows=1)
    with pytest.raises(TypeError, match=r"'price' are kept as a tensor of torch.float32 \[0, 1\], got .* \[1, 2\]"):
        pool.push(np.array([3]), np.array([2]), wrong)
    assert pool.sizes() == {3: 1}
    nested = Batch({"tags": Ragged.from_lists([[[1]]]), "price": torch.ones(1, 1)}, num_rows=1)
    with pytest.raises(TypeError, match="rows of rows"):
        ItemPool(("tags", "price")).push(np.array([3]), np.array([2]), nested)


@pytest.mark.parametrize("options", [{"max_items": 0}, {"start_items": -1}, {"max_items": 5, "start_items": 5}])
def test_limits_that_leave_nothing_to_draw_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="PoolConfig"):
        PoolConfig(**options)
