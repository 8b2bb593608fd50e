"""Pools written to files come back as they were, on any number of workers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from data.operators.sample_rows import rows_of
from monolith.data import Batch, Framing, read_examples, write_examples
from monolith.data.operators import ItemPool, PoolConfig, restore_pool, save_pool
from monolith.data.protos.example_pb2 import ChannelCache
from monolith.errors import DataLossError, NotFoundError
from monolith.ids import pack_v2
from monolith.tensors import Ragged

COLUMNS = ("tags", "price", "size", "vector", "title", "scores", "counts")
LIMITS = PoolConfig(max_items=100, start_items=0)


def filled(seed: int = 0) -> ItemPool:
    pool = ItemPool(COLUMNS, LIMITS)
    random = np.random.default_rng(seed)
    ids = random.integers(-(1 << 63), (1 << 63) - 1, 30)
    rows = Batch(
        {
            "tags": Ragged.from_lists([[int(number), pack_v2(7, 1)][: int(number) % 3] for number in ids]),
            "price": torch.from_numpy(random.random(30, dtype=np.float32)),
            "size": torch.from_numpy(ids),
            "vector": torch.from_numpy(random.random((30, 3), dtype=np.float32)),
            "title": [str(number).encode() for number in ids],
            "scores": Ragged.from_lists([[0.5] * (int(number) % 4) for number in ids], dtype=torch.float32),
            "counts": torch.from_numpy(random.integers(0, 9, (30, 2))),
        },
        num_rows=30,
    )
    pool.push(np.array([1, 2, 3] * 10), ids, rows)
    pool.draw(np.array([1] * 20), np.zeros(20, dtype=np.int64), random.random((20, 3)), easy_share=0.5, alpha=0.0)
    return pool


def state_of(pool: ItemPool) -> dict[int, object]:
    return {
        channel: (items.ids.tolist(), items.seen.tolist(), items.drawn.tolist(), rows_of(features))
        for channel, items, features in pool.channels()
    }


def test_a_pool_is_restored_as_it_was_saved(tmp_path: Path) -> None:
    pool = filled()
    path = save_pool(pool, str(tmp_path), step=7)
    assert path == f"{tmp_path}/model.ckpt-7_item_pool_0_0_1"
    assert [file.name for file in tmp_path.iterdir()] == ["model.ckpt-7_item_pool_0_0_1"]
    again = ItemPool(COLUMNS, LIMITS)
    restore_pool(again, str(tmp_path), step=7)
    assert state_of(again) == state_of(pool)
    messages = [ChannelCache.FromString(record) for record in read_examples(path, Framing.TFRECORD)]
    assert [message.channel_id for message in messages] == [1, 2, 3]


def test_files_of_any_number_of_workers_are_read() -> None:
    folder = "memory://pools"
    pools = [filled(seed) for seed in range(2)]
    for worker, pool in enumerate(pools):
        save_pool(pool, folder, step=3, worker=worker, num_workers=2)
    for worker, source in ((0, 0), (1, 1), (2, 0), (5, 1)):
        again = ItemPool(COLUMNS, LIMITS)
        restore_pool(again, folder, step=3, worker=worker)
        assert state_of(again) == state_of(pools[source])
    with pytest.raises(NotFoundError, match="no item pool of step 4; the files there are"):
        restore_pool(ItemPool(COLUMNS), folder, step=4)


def write_shard(folder: Path, shard: int, items: dict[int, list[int]], step: int = 1) -> None:
    messages = []
    for channel, ids in items.items():
        message = ChannelCache(channel_id=channel)
        for id_ in ids:
            columns = message.feature_datas.add(gid=id_, origin_cnt=id_, sample_cnt=1).feature_columns
            columns.add(name="tags").feature.fid_v2_list.value.append(10 * id_)
        messages.append(message.SerializeToString())
    write_examples(folder / f"model.ckpt-{step}_item_pool_0_{shard}_1", messages, Framing.TFRECORD)


def test_all_shards_of_a_worker_are_read(tmp_path: Path) -> None:
    shards = [{1: [1, 2], 2: [5]}, {3: [7]}, {1: [3], 3: [8, 9]}]
    for shard, items in enumerate(shards):
        write_shard(tmp_path, shard, items)
    write_shard(tmp_path, 12, {9: [9]}, step=11)  # of another step
    pool = ItemPool(("tags",), LIMITS)
    paths = restore_pool(pool, str(tmp_path), step=1)
    assert paths == [f"{tmp_path}/model.ckpt-1_item_pool_0_{shard}_1" for shard in range(3)]
    assert state_of(pool) == {
        channel: (ids, ids, [1] * len(ids), [{"tags": [10 * id_]} for id_ in ids])
        for channel, ids in {1: [1, 2, 3], 2: [5], 3: [7, 8, 9]}.items()
    }


def test_a_shard_that_is_lost_or_damaged_restores_nothing(tmp_path: Path) -> None:
    write_shard(tmp_path, 0, {1: [1]})
    write_shard(tmp_path, 2, {1: [3]})
    pool = ItemPool(("tags",), LIMITS)
    with pytest.raises(NotFoundError, match=r"step 1 lacks shard 1 of worker 0; there are \[0, 2\]"):
        restore_pool(pool, str(tmp_path), step=1)
    write_shard(tmp_path, 1, {1: [1]})
    with pytest.raises(DataLossError, match="item_pool_0_0_1 and the 2 other shards: channel 1 has an item twice"):
        restore_pool(pool, str(tmp_path), step=1)
    assert len(pool) == 0


def test_pools_of_instances_have_flat_ids(tmp_path: Path) -> None:
    message = ChannelCache(channel_id=3)
    message.feature_datas.add(gid=5, fids=[(5 << 54) | 1, (5 << 54) | 2, (7 << 54) | 3], origin_cnt=2, sample_cnt=1)
    write_examples(tmp_path / "model.ckpt-1_item_pool_0_0_1", [message.SerializeToString()], Framing.TFRECORD)
    pool = ItemPool(("fc_slot_5", "fc_slot_7"), LIMITS)
    restore_pool(pool, str(tmp_path), step=1)
    features = {"fc_slot_5": [pack_v2(5, 1), pack_v2(5, 2)], "fc_slot_7": [pack_v2(7, 3)]}
    assert state_of(pool) == {3: ([5], [2], [1], [features])}


def test_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.ckpt-1_item_pool_0_0_1"
    write_examples(path, [b"\xff\xff"], Framing.TFRECORD)
    with pytest.raises(DataLossError, match="a record is no ChannelCache"):
        restore_pool(ItemPool(COLUMNS, LIMITS), str(tmp_path), step=1)
    message = ChannelCache(channel_id=3)
    for _ in range(2):
        message.feature_datas.add(gid=5).feature_columns.add(name="tags").feature.fid_v2_list.SetInParent()
    write_examples(path, [message.SerializeToString()], Framing.TFRECORD)
    with pytest.raises(DataLossError, match="channel 3 has an item twice"):
        restore_pool(ItemPool(("tags",), LIMITS), str(tmp_path), step=1)
    del message.feature_datas[1]
    write_examples(path, [message.SerializeToString()], Framing.TFRECORD)
    with pytest.raises(DataLossError, match="column 'price' of channel 3 must be of one kind, got nothing"):
        restore_pool(ItemPool(("tags", "price"), LIMITS), str(tmp_path), step=1)
    save_pool(ItemPool(("tags",), LIMITS), str(tmp_path), step=2, worker=1, num_workers=2)
    with pytest.raises(NotFoundError, match="lacks the file of worker 0 of 2"):
        restore_pool(ItemPool(("tags",), LIMITS), str(tmp_path), step=2)


def test_a_column_without_a_single_id_is_restored(tmp_path: Path) -> None:
    pool = ItemPool(("tags",), LIMITS)
    pool.push(np.array([3, 3]), np.array([1, 2]), Batch({"tags": Ragged.from_lists([[], []])}, num_rows=2))
    save_pool(pool, str(tmp_path), step=1)
    again = ItemPool(("tags",), LIMITS)
    restore_pool(again, str(tmp_path), step=1)
    assert state_of(again) == state_of(pool)


def test_an_empty_pool_is_an_empty_file(tmp_path: Path) -> None:
    save_pool(ItemPool(COLUMNS), str(tmp_path), step=0)
    again = ItemPool(COLUMNS)
    restore_pool(again, str(tmp_path), step=0)
    assert len(again) == 0
