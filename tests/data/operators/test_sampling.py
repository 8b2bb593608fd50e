"""What chance keeps depends on the seed and the row alone, and keeps the share it should."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data.operators.sample_rows import Row, batch_of, few, rows, rows_of
from monolith.data import INVALID_LABEL, Batch
from monolith.data.operators import InShare, NegativeSample, NumberRows, SpecialStrategy
from monolith.data.operators.row_draws import GOLDEN, mix64, row_keys, uniform_draws
from monolith.data.rows import concat_batches, take_rows
from monolith.tensors import Ragged


def many(count: int = 20_000, **columns: Any) -> Batch:
    return Batch(
        {
            "uid": torch.arange(count),
            "item_id": torch.arange(count) % 7,
            "req_time": torch.full((count,), 1_700_000_000),
            **columns,
        },
        num_rows=count,
    )


def splitmix64(state: int) -> int:
    """One step of the published generator, on plain integers."""
    mask = (1 << 64) - 1
    z = (state + 0x9E3779B97F4A7C15) & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return z ^ z >> 31


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=9))
def test_mixing_is_that_of_splitmix64(numbers: list[int]) -> None:
    mixed = mix64(torch.tensor(numbers, dtype=torch.int64))
    assert [number % (1 << 64) for number in mixed.tolist()] == [splitmix64(number % (1 << 64)) for number in numbers]


@few
@given(rows(), st.randoms(use_true_random=False))
def test_a_row_has_the_same_key_in_any_batch(samples: list[Row], random: Any) -> None:
    columns = ["user", "label", "city", "req_time", "actions"]
    batch = batch_of(samples)
    keys = row_keys(batch, columns, "test").tolist()
    order = list(range(len(samples)))
    random.shuffle(order)
    shuffled = take_rows(batch, torch.tensor(order, dtype=torch.int64))
    assert row_keys(shuffled, columns, "test").tolist() == [keys[number] for number in order]


@few
@given(rows(max_size=12))
def test_rows_that_differ_have_different_keys(samples: list[Row]) -> None:
    batch = batch_of(samples)
    distinct = {str((row["user"], row["city"], row["uid"])) for row in samples}
    assert len(set(row_keys(batch, ["user", "city", "uid"], "test").tolist())) == len(distinct)


@pytest.mark.parametrize("seed", [3, -1, (1 << 31) + 5])
def test_draws_are_those_of_splitmix64_at_any_seed(seed: int) -> None:
    salt = zlib.crc32(b"InShare") | (seed % (1 << 32)) << 32
    start = splitmix64(7 ^ splitmix64(salt))
    expected = [(splitmix64((start + number * GOLDEN) % (1 << 64)) >> 11) * 2.0**-53 for number in range(3)]
    assert uniform_draws(torch.tensor([7]), seed=seed, owner=InShare(), count=3).tolist() == [expected]


def test_draws_look_uniform_and_independent() -> None:
    draws = uniform_draws(torch.arange(100_000), seed=3, owner=InShare(), count=3)
    assert draws.min() >= 0
    assert draws.max() < 1
    for column in draws.unbind(1):
        counts = torch.histc(column.to(torch.float32), bins=20, min=0, max=1)
        assert float(((counts - 5000) ** 2 / 5000).sum()) < 45  # 99.9 % of chi-squared with 19 degrees of freedom
    correlations = torch.corrcoef(
        torch.cat([draws, uniform_draws(torch.arange(100_000), seed=4, owner=InShare())], 1).T
    )
    assert float((correlations - torch.eye(4)).abs().max()) < 0.015
    other = uniform_draws(torch.arange(100_000), seed=3, owner=NegativeSample(0.5), count=1)
    assert abs(float(torch.corrcoef(torch.stack([draws[:, 0], other[:, 0]]))[0, 1])) < 0.015


def test_a_share_is_kept_and_shares_split_the_rows() -> None:
    batch = many()
    parts = [InShare(begin=low, end=high, seed=5).holds(batch) for low, high in ((0, 0.1), (0.1, 0.75), (0.75, 1))]
    assert torch.stack(parts).sum(0).tolist() == [1] * batch.num_rows
    assert [int(part.sum()) / batch.num_rows for part in parts] == pytest.approx([0.1, 0.65, 0.25], abs=0.01)
    assert not InShare(end=0.0).holds(batch).any()
    assert InShare().holds(batch).all()


def test_what_is_kept_does_not_depend_on_how_rows_are_batched() -> None:
    batch = many(1000)
    keep = InShare(end=0.3, seed=9)
    whole = keep(batch)
    pieces = [keep(take_rows(batch, torch.arange(at, at + 100))) for at in range(0, 1000, 100)]
    assert rows_of(whole) == [row for piece in pieces for row in rows_of(piece)]
    assert whole is not None
    assert rows_of(InShare(end=0.3, seed=10)(batch)) != rows_of(whole)


def test_users_stay_together_by_their_key() -> None:
    batch = many(2000, user=torch.arange(2000) // 10)
    kept = InShare(end=0.5, keys=("user",))(batch)
    assert kept is not None
    users = kept["user"]
    assert isinstance(users, torch.Tensor)
    assert torch.unique(users, return_counts=True)[1].tolist() == [10] * (kept.num_rows // 10)


def test_numbered_rows_draw_apart_although_they_are_equal() -> None:
    numbered = NumberRows()
    batch = Batch({"uid": torch.zeros(1000, dtype=torch.int64)}, num_rows=1000)
    first, second = numbered(batch), numbered(batch)
    keep = InShare(end=0.5, keys=("row_number",))
    assert 400 < int(keep.holds(first).sum()) < 600
    assert keep.holds(first).tolist() != keep.holds(second).tolist()
    again = NumberRows()
    again.load_state_dict({"next_number": 1000})
    assert rows_of(again(batch)) == rows_of(second)
    assert again.state_dict() == {"next_number": 2000}


def test_negatives_are_dropped_at_the_rate_of_their_first_action() -> None:
    count = 20_000
    kinds = torch.arange(count) % 5
    # 0: positive, 1: negative without action, 2: action 7 (rate 0.9), 3: actions 8 and 7 (8 first, rate 0), 4: no label
    labels = torch.tensor([1.0, 0.0, 0.0, 0.0, INVALID_LABEL])[kinds][:, None]
    actions = Ragged.from_lists([[[], [], [7], [7, 8], []][kind] for kind in kinds.tolist()])
    batch = many(count, label=labels, actions=actions, kind=kinds)
    kept = NegativeSample(0.5, action_priority=(8, 7), action_drop_rates={7: 0.9, 8: 0.0}, seed=2)(batch)
    assert kept is not None
    column = kept["kind"]
    assert isinstance(column, torch.Tensor)
    shares = [int((column == kind).sum()) / (count / 5) for kind in range(5)]
    assert shares == pytest.approx([1, 0.5, 0.1, 1, 1], abs=0.02)


def test_the_share_of_negatives_that_stays_is_recorded_in_every_row() -> None:
    batch = many(1000, label=(torch.arange(1000) % 2).to(torch.float32)[:, None])
    kept = NegativeSample(0.75, record_rate=True)(batch)
    assert kept is not None
    assert kept["sample_rate"].tolist() == [0.25] * kept.num_rows  # type: ignore[union-attr]
    again = NegativeSample(0.5, record_rate=True, seed=1)(kept)
    assert again is not None
    assert again["sample_rate"].tolist() == [0.125] * again.num_rows  # type: ignore[union-attr]


def test_all_negatives_of_a_batch_may_go() -> None:
    batch = many(10, label=torch.zeros(10, 1))
    assert NegativeSample(1.0)(batch) is None
    assert NegativeSample(0.0)(batch) is batch


def test_the_first_listed_strategy_decides() -> None:
    count = 12_000
    kinds = torch.arange(count) % 4
    strategies = Ragged.from_lists([[[], [5, 3], [5], [99]][kind] for kind in kinds.tolist()])
    batch = many(count, special_strategies=strategies, label=torch.full((count, 2), 7.0), kind=kinds)
    operator = SpecialStrategy.from_text("3:0.25:1,5:1", keep_empty=False)
    kept = operator(batch)
    assert kept is not None
    column, labels = kept["kind"], kept["label"]
    assert isinstance(column, torch.Tensor)
    assert isinstance(labels, torch.Tensor)
    shares = [int((column == kind).sum()) / (count / 4) for kind in range(4)]
    assert shares == pytest.approx([0, 0.25, 1, 1], abs=0.02)
    assert torch.unique(labels[column == 1], dim=0).tolist() == [[1.0, 7.0]]
    assert torch.unique(labels[column != 1]).tolist() == [7.0]
    stays = SpecialStrategy({3: 1.0}, keep_empty=True)(batch)
    assert stays is not None
    assert stays.num_rows == count
    assert torch.equal(batch["label"], torch.full((count, 2), 7.0))  # type: ignore[arg-type]  # it is not changed


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: InShare(end=1.5), "end must be in"),
        (lambda: InShare(begin=0.6, end=0.5), "begin must be <= end"),
        (lambda: NegativeSample(-0.1), "drop_rate must be in"),
        (lambda: NegativeSample(float("nan")), "drop_rate must be in"),
        (lambda: NegativeSample(0.5, action_priority=(1, 1)), "must differ"),
        (lambda: NegativeSample(0.5, action_drop_rates={3: 0.5}), "no place in action_priority"),
        (lambda: NegativeSample(0.5, action_priority=(3,), action_drop_rates={3: 2.0}), "must be in"),
        (lambda: NegativeSample(1.0, record_rate=True), "record_rate needs one drop_rate below 1"),
        (lambda: SpecialStrategy({1: 2.0}), "rates must be in"),
        (lambda: SpecialStrategy({1: 1.0}, labels={2: 1.0}), "have a label and no rate"),
        (lambda: SpecialStrategy.from_text("1"), "must be 'strategy:rate"),
    ],
)
def test_wrong_rates_are_refused(make: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


def test_absent_key_columns_are_named() -> None:
    with pytest.raises(ValueError, match="InShare: batch has no column 'uid'; it has x"):
        InShare(end=0.5).holds(Batch({"x": torch.ones(2)}, num_rows=2))


def test_empty_batches_stay_empty() -> None:
    empty = batch_of([])
    for operator in (InShare(end=0.5), NegativeSample(0.5)):
        assert operator(empty) is None
    assert concat_batches([empty, empty]).num_rows == 0
