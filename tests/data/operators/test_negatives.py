"""Negatives have the user's side of their positive, another item's side, and say how they came about."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from data.operators.sample_rows import rows_of
from monolith.data import INVALID_LABEL, Batch
from monolith.data.operators import (
    LOG_Q,
    SAMPLED,
    SAMPLED_FREQUENCY,
    NegativeGen,
    NegativeSampling,
    NegativeWeights,
    PoolConfig,
    PoolEntry,
    Positives,
)
from monolith.data.operators.item_pool import Draws
from monolith.data.rows import take_rows
from monolith.tensors import Ragged

LIMITS = PoolConfig(max_items=1000, start_items=0)


def clicks(count: int, *, seed: int = 0, num_items: int = 50) -> Batch:
    random = np.random.default_rng(seed)
    items = random.integers(1, num_items + 1, count)
    return Batch(
        {
            "uid": torch.from_numpy(random.integers(1, 1 << 40, count)),
            "item_id": torch.from_numpy(items),
            "req_time": torch.arange(count) + 1_700_000_000 + seed,
            "user": Ragged.from_lists([[number, number + 1] for number in range(count)]),
            "brand": Ragged.from_lists([[int(item)] * (int(item) % 3) for item in items]),
            "price": torch.from_numpy(items.astype(np.float32))[:, None],
            "channel": torch.from_numpy(items % 3),
            "actions": Ragged.from_lists([[int(item) % 5] for item in items]),
            "label": torch.from_numpy((random.random(count) < 0.3).astype(np.float32))[:, None],
        },
        num_rows=count,
    )


def gen(**options: Any) -> NegativeGen:
    return NegativeGen(NegativeSampling(("brand", "price"), **{"limits": LIMITS, **options}))


def test_each_positive_gets_its_negatives_in_front_of_it() -> None:
    batch = clicks(200)
    made = rows_of(gen(num_negatives=3)(batch))
    originals = rows_of(batch)
    position = 0
    for original in originals:
        if original["label"] == [1.0]:
            for negative in made[position : position + 3]:
                assert negative[SAMPLED] == 1
                assert negative["item_id"] != original["item_id"]
                assert negative["label"] == [0.0]
                for name in ("uid", "req_time", "user", "actions"):
                    assert negative[name] == original[name]
                assert negative["price"] == [negative["item_id"]]
                assert negative["brand"] == [negative["item_id"]] * (negative["item_id"] % 3)
            position += 3
        sample = made[position]
        assert sample[SAMPLED] == 0
        assert {name: sample[name] for name in original} == original
        assert (sample[SAMPLED_FREQUENCY], sample[LOG_Q], sample["instance_weight"]) == (1, 0, 1)
        position += 1
    assert position == len(made)


def test_probability_and_frequency_are_recorded() -> None:
    batch = clicks(200)
    operator = gen(num_negatives=2)
    made = operator(batch)
    assert made is not None
    negatives = [row for row in rows_of(made) if row[SAMPLED]]
    size = len(operator.pool)
    assert {round(np.exp(row[LOG_Q]) * (size - 1), 4) for row in negatives} == {1.0}
    counts: dict[int, int] = {}
    for row in negatives:
        counts[row["item_id"]] = counts.get(row["item_id"], 0) + 1
        assert row[SAMPLED_FREQUENCY] == pytest.approx(1 / counts[row["item_id"]])


def test_the_vector_of_the_specification() -> None:
    draws = Draws(
        np.array([True, True]),
        np.array([7, 7]),
        Batch({}, num_rows=2),
        np.array([1, 2]),
        np.array([1.0, 1.0]),
        np.zeros(2),
    )
    assert NegativeWeights(unbias=True).of_sampled(draws, 5).tolist() == [6.0, 3.5]
    assert NegativeWeights(unbias=True, sampled=0.25).of_sampled(draws, 5).tolist() == [0.25, 0.25]
    assert NegativeWeights(sampled=1e-6).of_sampled(draws, 5).tolist() == [1, 1]


def test_unbiased_weights_follow_age_and_frequency() -> None:
    made = gen(num_negatives=4, weights=NegativeWeights(unbias=True, decay=0.5, real=0.5))(clicks(300))
    weights = [(row["instance_weight"], row[SAMPLED_FREQUENCY]) for row in rows_of(made) if row[SAMPLED]]
    assert all(1 < weight <= 1 + 4 * frequency + 1e-5 for weight, frequency in weights)
    real = {row["instance_weight"] for row in rows_of(made) if not row[SAMPLED] and row["label"] == [0.0]}
    assert real == {0.5}


def test_the_same_data_gives_the_same_negatives_also_after_a_restart() -> None:
    first, second = clicks(200, seed=1), clicks(200, seed=2)
    operator = gen(num_negatives=2)
    operator(first)
    saved = operator.state_dict()
    wanted = rows_of(operator(second))
    restarted = gen(num_negatives=2)
    restarted.load_state_dict(saved)
    assert rows_of(restarted(second)) == wanted
    other = gen(num_negatives=2, seed=1)
    other.load_state_dict(saved)
    assert rows_of(other(second)) != wanted


def test_a_pool_that_is_not_ready_gives_the_positive_alone() -> None:
    batch = clicks(40)
    made = gen(num_negatives=3, limits=PoolConfig())(batch)
    assert made is not None
    assert made.num_rows == 40
    assert made[SAMPLED].sum() == 0  # type: ignore[union-attr]


def test_rows_that_were_read_may_be_dropped() -> None:
    batch = clicks(200)
    positives = sum(row["label"] == [1.0] for row in rows_of(batch))
    none = gen(keep="none")(batch)
    assert none is not None
    assert none.num_rows == positives
    assert none[SAMPLED].min() == 1  # type: ignore[union-attr]
    some = gen(keep="positives")(batch)
    assert some is not None
    assert some.num_rows == 2 * positives
    assert gen(keep="none", limits=PoolConfig())(batch) is None


def test_hard_negatives_come_from_the_channel_and_channel_zero_takes_no_part() -> None:
    batch = clicks(400)
    operator = gen(num_negatives=3, channel="channel")
    made = rows_of(operator(batch))
    assert 0 not in operator.pool.sizes()
    negatives = [row for row in made if row[SAMPLED]]
    assert {row["channel"] for row in negatives} == {1, 2}
    assert all(row["item_id"] % 3 == row["channel"] for row in negatives)
    easy = [row for row in rows_of(gen(num_negatives=3, channel="channel", easy_share=1.0)(batch)) if row[SAMPLED]]
    assert any(row["item_id"] % 3 != row["channel"] for row in easy)


def test_actions_decide_what_is_positive_and_what_enters() -> None:
    batch = clicks(300)
    rule = Positives(actions=(2,), action_priority=(4, 2), negative_action=99)
    operator = gen(positives=rule, entry=PoolEntry(only_positives=True, negative_actions=(3,)))
    made = rows_of(operator(batch))
    assert {item % 5 for _, items, _ in operator.pool.channels() for item in items.ids.tolist()} == {2, 3}
    negatives = [row for row in made if row[SAMPLED]]
    assert len(negatives) == sum(row["actions"] == [2] for row in rows_of(batch))
    assert {tuple(row["actions"]) for row in negatives} == {(99,)}


def test_any_of_the_actions_makes_a_row_positive_without_a_priority() -> None:
    actions = Ragged.from_lists([[5], [2, 9], [], [7, 2]])
    batch = Batch({"actions": actions, "label": torch.zeros(4, 1)}, num_rows=4)
    assert Positives(actions=(2, 5)).of(batch).tolist() == [True, True, False, True]
    assert Positives(actions=(2, 5), action_priority=(9, 2, 5)).of(batch).tolist() == [True, False, False, True]


@pytest.mark.parametrize("name", ["actions", "action_priority"])
def test_actions_are_different_numbers_of_32_bits(name: str) -> None:
    make: Any = Positives
    with pytest.raises(ValueError, match=f"Positives: {name} must be 32-bit integers"):
        make(**{name: (1 << 31,)})
    with pytest.raises(ValueError, match=f"Positives: {name} must differ"):
        make(**{name: (1, 1)})


def test_a_share_of_the_negatives_enters() -> None:
    batch = clicks(4000, num_items=100_000)
    operator = gen(
        entry=PoolEntry(negative_share=0.25), limits=PoolConfig(max_items=10_000, start_items=0), num_negatives=0
    )
    operator(batch)
    labels = batch["label"]
    assert isinstance(labels, torch.Tensor)
    positives = int(labels.sum())
    assert len(operator.pool) - positives == pytest.approx(0.25 * (4000 - positives), rel=0.1)


def test_items_by_the_first_id_of_a_list() -> None:
    batch = clicks(200)
    made = gen(item_id="brand")(batch)
    negatives = [row for row in rows_of(made) if row[SAMPLED]]
    assert negatives
    assert all(len(row["brand"]) == 1 for row in negatives)
    with_brand = [row for row in rows_of(batch) if row["label"] == [1.0] and row["brand"]]
    assert len(negatives) == len(with_brand)


def test_only_the_label_of_the_task_changes() -> None:
    batch = clicks(100)
    labels = torch.full((100, 3), INVALID_LABEL)
    labels[:, 1] = batch["label"].view(-1)  # type: ignore[union-attr]
    made = gen(positives=Positives(label_index=1, negative_label=-1.0))(Batch({**batch, "label": labels}, num_rows=100))
    negatives = [row for row in rows_of(made) if row[SAMPLED]]
    assert {tuple(row["label"]) for row in negatives} == {(INVALID_LABEL, -1.0, INVALID_LABEL)}


def test_empty_batches_and_batches_without_positives_pass() -> None:
    batch = clicks(20)
    assert gen()(take_rows(batch, torch.zeros(20, dtype=torch.bool))) is None
    negative = Batch({**batch, "label": torch.zeros(20, 1)}, num_rows=20)
    made = gen()(negative)
    assert made is not None
    assert made.num_rows == 20


def test_absent_and_wrong_columns_are_named() -> None:
    batch = clicks(5)
    with pytest.raises(ValueError, match="NegativeGen: batch has no column 'gid'; it has uid"):
        gen(item_id="gid")(batch)
    with pytest.raises(TypeError, match="column 'price' must be one int64, or a list, for each row, got a tensor"):
        gen(item_id="price")(batch)
    with pytest.raises(ValueError, match="NegativeGen: batch has no column 'color'"):
        NegativeGen(NegativeSampling(("color",)))(batch)
    with pytest.raises(ValueError, match="keep must be"):
        NegativeSampling(("brand",), keep="some")
    with pytest.raises(ValueError, match="easy_share must be in"):
        NegativeSampling(("brand",), easy_share=1.5)
