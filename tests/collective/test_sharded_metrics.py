"""The numbers of the exchanges are those of the ids, rows and gradients that travel."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from collective.rank_threads import ThreadRank, run_ranks
from monolith.collective import ShardedStore
from monolith.collective.sharded.exchange import AlltoallMetrics
from monolith.errors import InvalidArgumentError
from monolith.tables import BatchStamp, Segment, TableConfig
from monolith.testing.reference_format import bucket_of_id

TABLES = {"item": TableConfig([Segment(1)]), "user": TableConfig([Segment(2), Segment(1)])}
IDS = {0: ([1, 1, 2, 3], [7]), 1: ([5], [1, 2, 3, 3])}
"""Of each rank, by table."""


def owner_of(key: int) -> int:
    return bucket_of_id(key) // 512


def read(rank: ThreadRank) -> AlltoallMetrics:
    store = ShardedStore(TABLES, training=rank.training, saving=rank.saving)
    found: list[AlltoallMetrics] = []
    store.watch_alltoall(found.append, slot="user")
    items, users = IDS[rank.rank]
    flat, splits = torch.tensor(items + users), torch.tensor([0, len(items), len(items + users)])
    session = store.join(rank.rank)
    plan = session.plan(flat, splits, stamp=BatchStamp(worker=rank.rank, seq=0))
    store.read(plan, step=0).result()  # whoever only looks is not counted
    session.read(plan, after=-1, step=0, train=True).result()
    session.discard(plan)
    (metrics,) = found
    return metrics


def test_sizes_are_those_of_what_travels() -> None:
    found = run_ranks(2, read)
    ids = np.zeros((2, 2, 2), np.int64)  # rank, owner, table
    for rank, by_table in IDS.items():
        for table, keys in enumerate(by_table):
            for key in set(keys):
                ids[rank, owner_of(key), table] += 1
    floats = ids * np.array([1, 3])
    for rank, (scalars, histograms) in enumerate(found):
        assert histograms["shard_sizes"] == histograms["Alltoall_id_splits"] == ids[rank].sum(1).tolist()
        assert histograms["sharded_slot_sizes"] == ids[rank].reshape(-1).tolist()
        assert histograms["fused_embedding_splits"] == floats[rank].reshape(-1).tolist()
        of_rows = floats[rank].sum(1).tolist()
        assert histograms["Alltoall_emb_splits"] == histograms["Alltoall_grad_splits"] == of_rows
        assert histograms["Alltoall_id_dist"] == ids[:, rank].sum(1).tolist()
        assert histograms["Alltoall_emb_dist"] == floats[:, rank].sum(1).tolist()
        assert scalars["all_fids_size"] == 5
        assert scalars["user_size"] == len(IDS[rank][1])
        assert scalars["Alltoall_id_sizes"] == ids[rank].sum()
        assert scalars["Alltoall_emb_sizes"] == scalars["Alltoall_grad_sizes"] == floats[rank].sum()
        assert scalars["Alltoall_id_max_size"] == max(histograms["shard_sizes"])
        assert histograms["shard_sizes"][scalars["Alltoall_id_min_idx"]] == scalars["Alltoall_id_min_size"]
        assert of_rows[scalars["Alltoall_emb_max_idx"]] == scalars["Alltoall_emb_max_size"] == max(of_rows)
        assert scalars["Alltoall_emb_min_size"] == min(of_rows)


def test_a_slot_that_is_none_is_refused() -> None:
    def program(rank: ThreadRank) -> None:
        store = ShardedStore(TABLES, training=rank.training, saving=rank.saving)
        with pytest.raises(InvalidArgumentError, match="unknown table 'usr'; did you mean 'user'"):
            store.watch_alltoall(lambda _: None, slot="usr")

    run_ranks(1, program)
