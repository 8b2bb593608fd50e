"""Generated clicks: a batch is a function of its position, and what was planted can be found."""

from __future__ import annotations

import json
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from monolith.data import Batch, ClickStream, SyntheticClicks
from monolith.data.clicks import START_TIME, CountedDraws, scrambled
from monolith.errors import InvalidArgumentError
from monolith.metrics import ExactAUC
from monolith.tensors import Ragged

SMALL = SyntheticClicks(num_users=50, num_items=30, num_tags=10, examples_per_day=200)


def column(batch: Batch, name: str) -> Tensor:
    values = batch[name]
    assert isinstance(values, Tensor)
    return values


def tags(batch: Batch) -> Ragged:
    return cast("Ragged", batch["tags"])


def same(one: Batch, other: Batch) -> bool:
    return list(one) == list(other) and all(
        torch.equal(tags(one).flat_values, tags(other).flat_values)
        and torch.equal(tags(one).row_splits, tags(other).row_splits)
        if name == "tags"
        else torch.equal(column(one, name), column(other, name))
        for name in one
    )


def counts_of(ids: Tensor) -> Tensor:
    counts: Tensor = torch.unique(ids, return_counts=True)[1]
    return counts


def auc(scores: Tensor, labels: Tensor) -> float:
    metric = ExactAUC()
    metric.update(scores.reshape(-1), labels.reshape(-1))
    return metric.compute()


def test_columns_are_those_of_a_parsed_batch() -> None:
    batch = ClickStream(seed=3).batch_at(0, 500)
    assert list(batch) == ["user", "item", "tags", "context", "label", "req_time"]
    for name in ("user", "item", "context", "req_time"):
        assert column(batch, name).dtype == torch.int64
        assert column(batch, name).shape == (500,)
    assert column(batch, "label").dtype == torch.float32
    assert column(batch, "label").shape == (500, 1)
    assert set(column(batch, "label").view(-1).tolist()) == {0.0, 1.0}
    assert set(tags(batch).lengths().tolist()) == {0, 1, 2, 3, 4}
    for name in ("user", "item", "context"):
        assert 0 <= int(column(batch, name).min()) <= int(column(batch, name).max()) < 1 << 48


@given(
    num_examples=st.integers(0, 60),
    batch_size=st.integers(3, 25),
    stop=st.integers(0, 8),
    other_size=st.integers(3, 25),
)
def test_reading_on_from_a_position_returns_every_later_example_once(
    num_examples: int, batch_size: int, stop: int, other_size: int
) -> None:
    stream = ClickStream(num_examples, batch_size=batch_size, seed=5, world=SMALL)
    with stream.read() as reading:
        seen = [batch for _, batch in zip(range(stop), reading, strict=False)]
        position = reading.position
        assert sum(batch.num_rows for batch in [*seen, *reading]) == num_examples
    rest = list(stream.read(position))
    again = list(stream)
    assert all(same(one, other) for one, other in zip([*seen, *rest], again, strict=True))
    resized = ClickStream(num_examples, batch_size=other_size, seed=5, world=SMALL)
    assert sum(batch.num_rows for batch in resized.read(position)) == sum(batch.num_rows for batch in rest)


@given(first=st.integers(0, 10**9), lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_an_example_does_not_depend_on_its_batch(first: int, lengths: list[int]) -> None:
    stream = ClickStream(seed=1, world=SMALL, truth=True)
    whole = stream.batch_at(first, sum(lengths))
    starts = np.cumsum([first, *lengths[:-1]]).tolist()
    parts = [stream.batch_at(start, length) for start, length in zip(starts, lengths, strict=True)]
    for name in ("user", "item", "context", "label", "req_time", "probability"):
        assert torch.equal(torch.cat([column(part, name) for part in parts]), column(whole, name))
    assert torch.equal(Ragged.concat([tags(part) for part in parts]).flat_values, tags(whole).flat_values)


def test_equal_streams_are_equal_and_seeds_differ() -> None:
    one, other, third = (ClickStream(400, seed=seed, world=SMALL).batch_at(0, 400) for seed in (7, 7, 8))
    assert same(one, other)
    assert not torch.equal(column(one, "label"), column(third, "label"))
    assert not torch.equal(column(one, "item"), column(third, "item"))


def test_an_ended_reading_stays_ended() -> None:
    reading = ClickStream(3, batch_size=2).read()
    assert [batch.num_rows for batch in reading] == [2, 1]
    assert next(reading, None) is None
    assert json.loads(reading.position)["clicks"]["example"] == 3
    reading.close()
    reading.close()


def test_time_never_decreases_and_days_have_the_requested_number_of_examples() -> None:
    times = column(ClickStream(world=SMALL).batch_at(0, 2000), "req_time")
    assert bool((times.diff() >= 0).all())
    assert int(times[0]) == START_TIME
    assert torch.bincount((times - START_TIME) // 86_400).tolist() == [200] * 10


@pytest.mark.parametrize("exponent", [0.0, 0.9, 1.3])
def test_items_are_met_by_the_power_law(exponent: float) -> None:
    world = SyntheticClicks(num_items=100, zipf=exponent, item_life_days=1e9, examples_per_day=10**6)
    items = column(ClickStream(world=world, seed=2).batch_at(0, 200_000), "item")
    counts = counts_of(items).sort(descending=True).values.double()
    shares = torch.arange(1, 101, dtype=torch.float64) ** -exponent
    expected = 200_000 * shares / shares.sum()
    assert len(counts) == 100
    assert bool(((counts - expected).abs() < 6 * expected.sqrt() + 1).all())


def test_items_leave_for_good_and_others_arrive() -> None:
    world = SyntheticClicks(num_items=200, item_life_days=5.0, examples_per_day=5000)
    stream = ClickStream(world=world, seed=4)
    days = [set(column(stream.batch_at(day * 5000, 5000), "item").tolist()) for day in range(12)]
    assert all(180 <= len(day) <= 260 for day in days)
    assert all(items.isdisjoint(days[0]) for items in days[6:])
    assert 0.6 < len(days[0] & days[1]) / len(days[0]) < 1.0


def test_visitors_come_once_and_regulars_do_not() -> None:
    world = SyntheticClicks(num_users=20, visitors=0.25, user_life_days=1e9)
    users = column(ClickStream(world=world, seed=6).batch_at(0, 20_000), "user")
    counts = counts_of(users)
    assert abs(int((counts == 1).sum()) / 20_000 - 0.25) < 0.02
    assert int((counts > 1).sum()) == 20


def test_labels_are_drawn_with_the_reported_probability() -> None:
    batch = ClickStream(seed=9, truth=True).batch_at(0, 200_000)
    probability, label = column(batch, "probability").view(-1).double(), column(batch, "label").view(-1).double()
    for low, high in ((0.0, 0.05), (0.05, 0.2), (0.2, 0.5), (0.5, 1.0)):
        chosen = (probability >= low) & (probability < high)
        expected, spread = probability[chosen].mean(), (0.25 / chosen.sum()).sqrt()
        assert int(chosen.sum()) > 1000
        assert abs(label[chosen].mean() - expected) < 5 * spread
    assert 0.78 < auc(probability, label) < 0.88


def click_rates(ids: Tensor, labels: Tensor, asked: Tensor) -> Tensor:
    """The smoothed click rate of each id asked for, as seen in some examples; the mean for one never seen."""
    known, index = torch.unique(ids, return_inverse=True)
    clicks = torch.zeros(len(known)).index_add_(0, index, labels)
    shown = torch.bincount(index, minlength=len(known))
    rates = (clicks + 20 * labels.mean()) / (shown + 20)
    place = torch.searchsorted(known, asked).clamp_max(len(known) - 1)
    return torch.where(known[place] == asked, rates[place], labels.mean())


def test_the_planted_signal_is_found_by_counting_and_goes_stale() -> None:
    stream = ClickStream(
        seed=11, truth=True, world=SyntheticClicks(num_users=500, num_items=300, examples_per_day=20_000)
    )

    def score(learned: Batch, judged: Batch) -> float:
        logits = torch.zeros(judged.num_rows)
        for name in ("user", "item"):
            rate = click_rates(column(learned, name), column(learned, "label").view(-1), column(judged, name))
            logits += torch.logit(rate)
        return auc(logits, column(judged, "label"))

    learned, next_day, much_later = (stream.batch_at(day * 20_000, 20_000) for day in (0, 1, 30))
    limit = auc(column(next_day, "probability"), column(next_day, "label"))
    fresh, stale = score(learned, next_day), score(learned, much_later)
    assert 0.62 < fresh < limit - 0.03
    assert stale < fresh - 0.08


def test_ids_never_collide() -> None:
    numbers = np.concatenate([np.arange(100_000), (1 << 47) + np.arange(100_000)])
    for purpose in range(3):
        ids = scrambled(numbers, purpose)
        assert len(np.unique(ids)) == len(numbers)
        assert ids.min() >= 0
        assert ids.max() < 1 << 48


def test_draws_are_uniform_and_normal_and_independent_of_each_other() -> None:
    numbers = np.arange(100_000)
    one, other = CountedDraws(1).uniform(1, numbers), CountedDraws(1).uniform(2, numbers)
    assert np.abs(np.histogram(one, bins=20, range=(0, 1))[0] - 5000).max() < 400
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.02
    assert abs(np.corrcoef(one[:-1], one[1:])[0, 1]) < 0.02
    normal = CountedDraws(1).normal(3, numbers)
    assert abs(normal.mean()) < 0.02
    assert abs(normal.std() - 1) < 0.02


@pytest.mark.parametrize(
    "position",
    [b"", b"x", b"[]", b"{}", b'{"clicks":7}', b'{"clicks":{"example":-1,"seed":0,"world":{}}}', b"\xff",
     b'{"clicks":{"example":true,"seed":0,"world":{}}}'],
)  # fmt: skip
def test_foreign_positions_are_refused(position: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="expected a position of a ClickStream, got"):
        ClickStream().read(position)


def test_positions_of_other_clicks_are_refused_by_the_field_that_differs() -> None:
    position = ClickStream(seed=1).position_of(5)
    with pytest.raises(InvalidArgumentError, match="expected seed 2, got 1"):
        ClickStream(seed=2).read(position)
    with pytest.raises(InvalidArgumentError, match="expected num_items 30, got 4000"):
        ClickStream(seed=1, world=SyntheticClicks(num_items=30)).read(position)
    with pytest.raises(InvalidArgumentError, match="expected type 'ClickWorld', got None"):
        ClickStream(seed=1).read(b'{"clicks":{"example":5,"seed":1,"world":7}}')


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="num_examples must be >= 0 or None, got -1"):
        ClickStream(-1)
    with pytest.raises(ValueError, match="batch_size must be >= 1, got 0"):
        ClickStream(batch_size=0)
    with pytest.raises(ValueError, match="visitors must"):
        SyntheticClicks(visitors=1.5)
    with pytest.raises(ValueError, match="num_users must"):
        SyntheticClicks(num_users=0)
