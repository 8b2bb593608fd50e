"""Defaults are promises: those of the original where it has the option, and the ones that the pages name."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import numpy as np
import pytest
import torch

from monolith import data
from monolith.data import Batch, operators
from monolith.data.operators import ItemPool, NegativeGen, NegativeSampling, Positives
from monolith.tensors import Ragged

KEYS = ("uid", "item_id", "req_time")

DEFAULTS: dict[str, dict[str, Any]] = {
    "AddLabel": {"negative_value": 0.0, "positive_value": 1.0, "new_sample_rate": 1.0, "seed": 0, "keys": KEYS},
    "BadRecords": {"limit": 0},
    "Counted": {"every_seconds": 300.0},
    "DenseColumn": {"width": 1, "dtype": "float32"},
    "FIFOQueue": {"capacity": 2},
    "InShare": {"begin": 0.0, "end": 1.0, "seed": 0, "keys": KEYS},
    "InstanceReweight": {"pre_actions": "pre_actions"},
    "KafkaConfig": {
        "group": "monolith",
        "assignment": "worker",
        "worker": 0,
        "num_workers": 1,
        "order": "arrival",
        "block_messages": 1024,
        "max_record_bytes": 64 << 20,
        "out_of_range": "raise",
        "patience_seconds": 60.0,
        "idle_seconds": None,
        "linger_seconds": 0.1,
        "buffer_bytes": 64 << 20,
    },
    "KafkaDataset": {"start": "earliest", "stop": "never"},
    "Label": {"name": "label", "width": 1},
    "LabelAbove": {"strict": False},
    "MapIds": {"default": 0},
    "MultiFIFOQueue": {"capacity": 2},
    "MultiHeadLabel": {"column": "chnid", "num_tasks": 0},
    "NegativeSample": {"threshold": 0.5, "label_index": 0, "record_rate": False, "seed": 0, "keys": KEYS},
    "NegativeSampling": {
        "num_negatives": 1,
        "item_id": "item_id",
        "channel": None,
        "easy_share": 0.0,
        "alpha": 0.0,
        "keep": "all",
        "seed": 0,
        "keys": KEYS,
    },
    "NegativeWeights": {"real": 1.0, "sampled": 0.0, "unbias": False, "decay": 1.0},
    "NumberRows": {"column": "row_number", "start": 0},
    "ParquetDataset": {"block_rows": 16_384, "num_labels": None, "cycle_length": 1},
    "Parser": {"max_parsed_bytes": 128 << 20},
    "PoolEntry": {"only_positives": False, "negative_actions": (), "negative_share": 1.0},
    "PoolConfig": {"max_items": 100_000, "start_items": 500, "max_channels": 1024},
    "Positives": {"label_index": 0, "positive_label": 1.0, "negative_label": 0.0, "negative_action": None},
    "RankLabel": {"rank_num": 18},
    "RecordDataset": {"cycle_length": 1, "max_record_bytes": 64 << 20},
    "RecordReader": {"max_record_bytes": 64 << 20},
    "ScatterLabel": {"column": "chnid"},
    "SharedFileQueue": {"timeout_seconds": 60.0},
    "SpecialStrategy": {"keep_empty": True, "seed": 0, "keys": KEYS},
    "TaskLabel": {"negative": (), "sample_rate": 1.0},
    "Value": {"keep_empty": False},
    "Weight": {"name": "instance_weight"},
    "enqueue_dicts_with_queue_return": {"capacity": 1},
    "generate_ffm_example": {"length": 5},
    "split_records": {"max_record_bytes": 64 << 20},
}


def defaults_of(made: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(made):
        return {field.name: field.default for field in dataclasses.fields(made)}
    return {parameter.name: parameter.default for parameter in inspect.signature(made).parameters.values()}


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_default_is_what_it_was(name: str) -> None:
    found = defaults_of(getattr(data, name, None) or getattr(operators, name))
    assert {key: found[key] for key in DEFAULTS[name]} == DEFAULTS[name]


def items(count: int) -> Batch:
    return Batch({"tags": Ragged.from_lists([[number] for number in range(count)])}, num_rows=count)


def draw_one(pool: ItemPool) -> int:
    draws = pool.draw(np.array([7]), np.array([-1]), np.full((1, 3), 0.5), easy_share=0.0, alpha=0.0)
    return int(draws.found.sum())


def test_a_pool_is_drawn_from_once_it_has_more_than_500_items() -> None:
    pool = ItemPool(("tags",))
    pool.push(np.full(500, 7), np.arange(500), items(500))
    assert draw_one(pool) == 0
    pool.push(np.array([7]), np.array([500]), items(1))
    assert draw_one(pool) == 1


@pytest.mark.slow
def test_a_pool_keeps_the_last_100_000_items_of_a_channel() -> None:
    pool = ItemPool(("tags",))
    for begin in (0, 50_000, 100_000):
        pool.push(np.full(50_000, 7), np.arange(begin, begin + 50_000), items(50_000))
    ((channel, kept, _),) = pool.channels()
    assert (channel, len(kept), kept.ids[0], kept.ids[-1]) == (7, 100_000, 50_000, 149_999)


def test_without_a_channel_all_items_are_in_the_upstream_default_one() -> None:
    batch = Batch(
        {
            "tags": Ragged.from_lists([[1], [2]]),
            "item_id": torch.tensor([5, 6]),
            "label": torch.tensor([[1.0], [0.0]]),
            "uid": torch.tensor([1, 2]),
            "req_time": torch.tensor([1, 2]),
        },
        num_rows=2,
    )
    made = NegativeGen(NegativeSampling(("tags",), positives=Positives()))
    made(batch)
    assert made.pool.sizes() == {3: 2}
