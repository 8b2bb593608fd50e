"""What happens exactly at a bound: each case is one number away from the other outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from monolith.data import INVALID_LABEL, Batch
from monolith.data.operators import (
    AddLabel,
    HasValidLabel,
    InShare,
    InstanceReweight,
    LabelAbove,
    LabelNormalization,
    LabelUpperBound,
    MultiHeadLabel,
    NegativeSample,
    NegativeSampling,
    NegativeWeights,
    PoolConfig,
    PoolEntry,
    RankLabel,
    ScatterLabel,
    SpecialStrategy,
    TaskLabel,
)
from monolith.data.operators.item_pool import Draws
from monolith.data.operators.row_draws import row_keys, uniform_draws
from monolith.tensors import Ragged

NAN = float("nan")


def labelled(*labels: float | list[float], **columns: Any) -> Batch:
    rows = [label if isinstance(label, list) else [label] for label in labels]
    count = len(rows)
    keys = {name: torch.arange(count) for name in ("uid", "item_id", "req_time")}
    return Batch({"label": torch.tensor(rows), **keys, **columns}, num_rows=count)


def labels(batch: Batch | None) -> list[Any]:
    if batch is None:
        return []
    values = batch["label"]
    assert isinstance(values, torch.Tensor)
    return [row[0] if len(row) == 1 else row for row in values.tolist()]


def test_a_label_at_its_threshold_is_above_it_unless_strict() -> None:
    batch = labelled(0.5, 0.4999999, 0.5000001)
    assert LabelAbove((0.5,)).holds(batch).tolist() == [True, False, True]
    assert LabelAbove((0.5,), strict=True).holds(batch).tolist() == [False, False, True]
    lowest = labelled(INVALID_LABEL, NAN, -1e38)
    assert LabelAbove((-float("inf"),)).holds(lowest).tolist() == [False, False, True]
    assert HasValidLabel().holds(lowest).tolist() == [False, False, True]
    assert HasValidLabel().holds(labelled([INVALID_LABEL, 0.0], [INVALID_LABEL, NAN])).tolist() == [True, False]


def test_a_label_at_the_threshold_is_no_negative() -> None:
    batch = labelled(0.5, 0.4999999, INVALID_LABEL, NAN, -3.0)
    assert len(labels(NegativeSample(1.0)(batch))) == 3
    assert labels(NegativeSample(1.0, threshold=-3.0)(batch))[-1] == -3.0
    assert len(labels(NegativeSample(0.0)(batch))) == 5


def test_rates_of_the_complete_range_are_accepted_and_others_are_rejected() -> None:
    for rate in (0.0, 1.0):
        NegativeSample(rate)
        NegativeSample(0.5, action_priority=(1,), action_drop_rates={1: rate})
        SpecialStrategy({1: rate})
        TaskLabel((1,), sample_rate=rate)
        PoolEntry(negative_share=rate)
        NegativeSampling(("a",), easy_share=rate)
        InShare(begin=rate, end=rate)
    AddLabel((TaskLabel((1,)),), new_sample_rate=1.0)
    made: list[Callable[[float], object]] = [
        NegativeSample,
        lambda rate: NegativeSample(0.5, action_priority=(1,), action_drop_rates={1: rate}),
        lambda rate: SpecialStrategy({1: rate}),
        lambda rate: TaskLabel((1,), sample_rate=rate),
        lambda rate: PoolEntry(negative_share=rate),
        lambda rate: NegativeSampling(("a",), easy_share=rate),
        lambda rate: InShare(end=rate),
        lambda rate: InShare(begin=rate),
        lambda rate: AddLabel((TaskLabel((1,)),), new_sample_rate=rate),
    ]
    for make in made:
        for rate in (-0.001, 1.001, NAN):
            with pytest.raises(ValueError, match=r"must be"):
                make(rate)
    with pytest.raises(ValueError, match="new_sample_rate must be > 0"):
        AddLabel((TaskLabel((1,)),), new_sample_rate=0.0)
    with pytest.raises(ValueError, match="begin must be <= end"):
        InShare(begin=0.5, end=0.4999)
    with pytest.raises(ValueError, match="record_rate needs one drop_rate below 1"):
        NegativeSample(1.0, record_rate=True)
    NegativeSample(0.999, record_rate=True)


@pytest.mark.parametrize(
    ("accepted", "refused"),
    [
        ({"max_items": 1, "start_items": 0}, {"max_items": 0, "start_items": 0}),
        ({"max_items": 501}, {"max_items": 500}),
        ({"max_channels": 1}, {"max_channels": 0}),
        ({"start_items": 0}, {"start_items": -1}),
    ],
)
def test_limits_of_a_pool(accepted: dict[str, int], refused: dict[str, int]) -> None:
    PoolConfig(**accepted)
    with pytest.raises(ValueError, match="PoolConfig"):
        PoolConfig(**refused)


def test_powers_from_minus_four_to_four() -> None:
    for alpha in (-4.0, 4.0):
        NegativeSampling(("a",), alpha=alpha)
    for alpha in (-4.01, 4.01):
        with pytest.raises(ValueError, match="alpha"):
            NegativeSampling(("a",), alpha=alpha)
    NegativeSampling(("a",), num_negatives=0)
    with pytest.raises(ValueError, match="num_negatives"):
        NegativeSampling(("a",), num_negatives=-1)


def test_a_weight_of_sampled_negatives_counts_from_above_1e_5() -> None:
    empty = Batch({}, num_rows=2)
    draws = Draws(np.ones(2, bool), np.arange(2), empty, np.array([1, 4]), np.array([1.0, 0.25]), np.zeros(2))
    assert NegativeWeights(sampled=1e-5).of_sampled(draws, 3).tolist() == [1.0, 1.0]
    assert NegativeWeights(sampled=1.1e-5).of_sampled(draws, 3).tolist() == pytest.approx([1.1e-5] * 2)
    assert NegativeWeights(unbias=True).of_sampled(draws, 3).tolist() == [1 + 3 * 1.0 / 1, 1 + 3 * 0.25 / 4]
    assert NegativeWeights(unbias=True, decay=2.0).of_sampled(draws, 3).tolist() == [4.0, 1 + 3 * 0.0625 / 4]
    assert NegativeWeights(sampled=2.0, unbias=True).of_sampled(draws, 3).tolist() == [2.0, 2.0]


def test_shares_of_a_pool_take_none_or_all() -> None:
    batch = labelled(0.0, 0.0, 1.0, actions=Ragged.from_lists([[7], [], []]))
    positive, chances = torch.tensor([False, False, True]), torch.tensor([0.5, 0.0, 0.999])
    enters = {
        (False, 1.0, ()): [True, True, True],
        (False, 0.5, ()): [False, True, True],
        (False, 0.0, ()): [False, False, True],
        (True, 1.0, ()): [False, False, True],
        (True, 1.0, (7,)): [True, False, True],
        (True, 0.5, (7,)): [False, False, True],
    }
    for (only, share, actions), expected in enters.items():
        entry = PoolEntry(only_positives=only, negative_share=share, negative_actions=actions)
        assert entry.of(batch, positive, chances).tolist() == expected


def test_ranks_stop_one_below_their_number_and_channels_at_two() -> None:
    batch = labelled(9.0, 9.0, 9.0, 9.0, rank=torch.tensor([0, 16, 17, 18]), chnid=torch.tensor([0, 1, 2, 3]))
    assert [row[1] for row in labels(RankLabel("rank")(batch))] == [0, 16, 17, 17]
    assert [row[1] for row in labels(RankLabel("rank", rank_num=1)(batch))] == [0, 0, 0, 0]
    assert [row[1] for row in labels(RankLabel("chnid")(batch))] == [0, 1, 2, 2]
    draws = labelled(9.0, 9.0, 9.0, is_draw=torch.tensor([0, 1, 7]))
    assert [row[1] for row in labels(RankLabel("draw")(draws))] == [0, 1, 1]
    with pytest.raises(ValueError, match="rank_num"):
        RankLabel("rank", rank_num=0)


def test_normalized_labels_at_their_bounds() -> None:
    def normalized(method: str, value: float, *given: float) -> list[Any]:
        return labels(LabelNormalization((method,), (value,))(labelled(*given)))

    assert normalized("log", 1.0, 0.0, -1.0, -2.0) == [0.0, -float("inf"), -float("inf")]
    assert normalized("scale", 4.0, 2.0, -2.0) == [0.5, -0.5]
    assert normalized("scale2int", 4.0, 7.0, 8.0, -7.0) == [1.0, 2.0, -1.0]
    assert normalized("pow", 2.0, 0.0, 2.0, -1.0) == [1.0, 9.0, 0.0]
    assert normalized("repow", 2.0, 3.0, 0.0, -3.0) == [9.0, 0.0, 0.0]
    assert normalized("repow", 0.0, 3.0, 0.0) == [1.0, 0.0]
    assert normalized("scalelog", 2.0, 0.0, -2.0) == [0.0, -float("inf")]
    assert normalized("scale", 4.0, INVALID_LABEL) == [INVALID_LABEL]
    assert labels(LabelUpperBound((1.0,))(labelled(1.0, 1.5, 0.5))) == [1.0, 1.0, 0.5]


def test_tasks_are_numbered_from_zero_to_the_last_that_is_named() -> None:
    batch = labelled(5.0, 6.0, 7.0, chnid=torch.tensor([10, 11, 12]), actions=Ragged.from_lists([[1], [2], []]))
    none = INVALID_LABEL
    assert labels(ScatterLabel({10: 0, 11: 1})(batch)) == [[5.0, none], [none, 6.0], [none, none]]
    assert labels(ScatterLabel({11: 0})(batch)) == [none, 6.0, none]
    assert labels(MultiHeadLabel({"10": 0}, num_tasks=1)(batch)) == [5.0, none, none]
    assert labels(MultiHeadLabel({"10": 1}, num_tasks=3)(batch))[0] == [none, 5.0, none]
    for make in (ScatterLabel, MultiHeadLabel):
        for wrong in ({}, {"10": -1}):
            with pytest.raises(ValueError, match="numbered from 0"):
                make(wrong)  # type: ignore[arg-type]  # texts of numbers, as flags give them
    with pytest.raises(ValueError, match="num_tasks must be 2 or more, got 1"):
        MultiHeadLabel({"10": 1}, num_tasks=1)
    heads = MultiHeadLabel({"10": 0, "11": 0, "12": 0}, positive=(1,))
    assert labels(heads(batch)) == [1.0, 0.0, 0.0]
    heads = MultiHeadLabel({"10": 0, "11": 0, "12": 0}, positive=(1,), negative=(2,))
    assert labels(heads(batch)) == [1.0, 0.0, none]


def test_a_first_label_of_zero_is_taken_away_before_tasks_are_added() -> None:
    batch = labelled(0.0, 0.001, -1.0, actions=Ragged.from_lists([[1], [1], [1]]))
    assert labels(AddLabel((TaskLabel((1,)),))(batch)) == [
        [INVALID_LABEL, 1.0],
        [pytest.approx(0.001), 1.0],
        [INVALID_LABEL, 1.0],
    ]


def test_weights_from_zero_on() -> None:
    InstanceReweight((1,), weights={1: 0}, labels={})
    for weight in (-1, 0.5):
        with pytest.raises(ValueError, match="weights must be integers >= 0"):
            InstanceReweight((1,), weights={1: weight}, labels={})  # type: ignore[dict-item]  # what is to be refused


def test_rows_without_a_strategy_stay_or_go_and_unlisted_ones_stay() -> None:
    strategies = Ragged.from_lists([[], [5], [7], [9, 7]])
    batch = labelled(0.0, 1.0, 2.0, 3.0, special_strategies=strategies)
    assert labels(SpecialStrategy({7: 0.0, 9: 1.0})(batch)) == [0.0, 1.0]
    assert labels(SpecialStrategy({7: 0.0, 9: 1.0}, keep_empty=False)(batch)) == [1.0]
    assert labels(SpecialStrategy({9: 1.0, 7: 0.0}, labels={9: 8.0})(batch)) == [0.0, 1.0, 8.0]


def test_a_label_column_without_tasks_has_no_label_and_takes_the_first() -> None:
    columns: dict[str, Any] = {
        "label": torch.zeros(2, 0),
        "rank": torch.tensor([3, 4]),
        "actions": Ragged.from_lists([[1], []]),
    }
    batch = Batch(columns, num_rows=2)
    assert HasValidLabel().holds(batch).tolist() == [False, False]
    assert labels(RankLabel("rank")(batch)) == [3.0, 4.0]
    assert labels(AddLabel((TaskLabel((1,)),))(batch)) == [1.0, 0.0]


def test_a_share_has_its_begin_and_not_its_end() -> None:
    batch = labelled(0.0, 0.0)
    everything = InShare()
    drawn = float(uniform_draws(row_keys(batch, everything.keys, everything), seed=0, owner=everything)[1, 0])
    assert InShare(begin=drawn).holds(batch)[1]
    assert not InShare(end=drawn).holds(batch)[1]


def test_numbers_that_differ_in_the_last_bit_are_keys_of_their_own_and_both_zeros_are_one() -> None:
    numbers = torch.tensor([0.0, -0.0, 5e-324, 1e-300, 2e-300], dtype=torch.float64)
    zero, minus_zero, *others = row_keys(Batch({"x": numbers}, num_rows=5), ("x",), None).tolist()
    assert zero == minus_zero
    assert len({zero, *others}) == 4
