"""A training table whose changes are read, and the serving table of a follower that has all of its rows."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import numpy as np
import torch

from monolith.cli._bench import ours
from monolith.cli._bench.workload import SEED, mixed_ids
from monolith.tables import LocalStore, TableConfig, TableGroup
from monolith.tables.compressors import Fp16
from monolith.tables.history import ALL_BUCKETS

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.tables import ChangePosition

TOUCHED = (100_000, 1_000, 0)
"""Rows between two looks, at most."""
TABLE = "user"
BUCKETS_AT_ONCE = 64
"""While a follower gets all rows."""

P = ParamSpec("P")
T = TypeVar("T")


class FollowedTables:
    """Rows of dim 16 with Adagrad, in float16 for serving, and a reader of their changes."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.store = LocalStore({TABLE: table_config(serving=False)})
        ours.fill(TableGroup.of_store(self.store)[TABLE], num_rows)
        self.reader = self.store.open_reader("log")
        self._random = np.random.default_rng(SEED)

    def new_follower(self) -> LocalStore:
        """Returns a serving table that has all rows."""
        follower = LocalStore({TABLE: table_config(serving=True)})
        everything = self.store.history
        for begin in range(0, len(ALL_BUCKETS), BUCKETS_AT_ONCE):
            packed = everything.packed_changes(0, state=False, buckets=range(begin, begin + BUCKETS_AT_ONCE))
            follower.load(packed, buckets=ALL_BUCKETS, replace=False)
        return follower

    def touch(self, count: int) -> ChangePosition:
        """Marks `count` uniformly drawn rows as changed; returns the mark after them."""
        rows = self._random.choice(self.num_rows, size=min(count, self.num_rows), replace=False)
        self.store.touch(TABLE, torch.from_numpy(mixed_ids(rows)))
        return self.reader.next_mark()


def thread_ms(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[float, T]:
    """Returns the CPU time of a call in this thread, in ms, and its result."""
    begun = time.thread_time()
    found = call(*args, **kwargs)
    return 1e3 * (time.thread_time() - begun), found


def table_config(*, serving: bool) -> TableConfig:
    """Returns the config of the tables of both sides."""
    config = ours.table_config()
    segments = [replace(segment, compressor=Fp16()) for segment in config.segments]
    return replace(config, segments=segments, serving=serving)
