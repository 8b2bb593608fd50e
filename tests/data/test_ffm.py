"""Random samples for factorisation machines."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from monolith.data import Ids, Label, Parser, generate_ffm_example, slot_to_key
from monolith.data.protos.tf_example_pb2 import Example
from monolith.tensors import Ragged


def test_the_key_of_a_slot_is_its_number() -> None:
    assert slot_to_key(0) == "feature_0"
    assert slot_to_key(17) == "feature_17"


def test_ids_stay_in_the_range_of_their_slot_and_rows_in_their_length() -> None:
    random = np.random.default_rng(7)
    sizes, seen = [3, 10, 5], [set(), set(), set()]  # type: list[int], list[set[int]]
    lengths = set()
    for _ in range(500):
        features = Example.FromString(generate_ffm_example(sizes, 4, seed=random)).features.feature
        assert set(features) == {"label", "feature_0", "feature_1", "feature_2"}
        for slot in range(3):
            ids = features[slot_to_key(slot)].int64_list.value
            lengths.add(len(ids))
            seen[slot].update(ids)
    assert lengths == {1, 2, 3, 4}
    assert seen == [set(range(3)), set(range(10, 20)), set(range(20, 25))]


def test_labels_are_drawn_from_zero_and_one() -> None:
    random = np.random.default_rng(7)
    labels = [
        Example.FromString(generate_ffm_example([2], seed=random)).features.feature["label"].int64_list.value[0]
        for _ in range(200)
    ]
    assert set(labels) == {0, 1}
    assert 60 < sum(labels) < 140


def test_a_seed_decides_the_example() -> None:
    assert generate_ffm_example([10, 20], seed=5) == generate_ffm_example([10, 20], seed=5)
    assert generate_ffm_example([10, 20], seed=5) != generate_ffm_example([10, 20], seed=6)
    assert len({generate_ffm_example([1 << 40]) for _ in range(3)}) == 3


def test_examples_parse_to_a_batch() -> None:
    records = [generate_ffm_example([5, 6], seed=seed) for seed in range(20)]
    batch = Parser("tf_example", [Ids("feature_0"), Ids("feature_1", slot=9), Label()]).parse(records)
    first, second, label = batch["feature_0"], batch["feature_1"], batch["label"]
    assert isinstance(first, Ragged)
    assert isinstance(second, Ragged)
    assert isinstance(label, torch.Tensor)
    for row, record in enumerate(records):
        features = Example.FromString(record).features.feature
        assert first.to_lists()[row] == list(features["feature_0"].int64_list.value)
        assert second.to_lists()[row] == [9 << 48 | value for value in features["feature_1"].int64_list.value]
        assert label[row].tolist() == [features["label"].int64_list.value[0]]


@pytest.mark.parametrize(("sizes", "length"), [([], 5), ([0], 5), ([3, -1], 5), ([3], 0)])
def test_sizes_that_cannot_be_drawn_from_are_refused(sizes: list[int], length: int) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        generate_ffm_example(sizes, length, seed=0)
