"""Tables to save, and the comparison of everything that a snapshot must bring back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from monolith.tables import HashTable, Segment, TableConfig, TableGroup, filters, initializers, row_optimizers

if TYPE_CHECKING:
    from numpy.typing import NDArray

DAY = 86400
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
EXTREME_IDS = np.array([INT64_MIN, INT64_MIN + 1, -1, 0, 1, INT64_MAX - 1, INT64_MAX], np.int64)


def user_config(name: str = "user") -> TableConfig:
    return TableConfig(
        [
            Segment(3, initializer=initializers.RandomUniform(-1.0, 1.0), optimizer=row_optimizers.Adam()),
            Segment(1, optimizer=row_optimizers.Adagrad(learning_rate=0.1)),
        ],
        name=name,
    )


def item_config(name: str = "item") -> TableConfig:
    return TableConfig([Segment(2, optimizer=row_optimizers.Ftrl(learning_rate=0.1))], name=name)


def two_tables() -> TableGroup:
    return TableGroup({"user": user_config(), "item": item_config()})


def filtered_table() -> HashTable:
    """New ids are let in after three occurrences."""
    admission = filters.SlidingHashFilter(capacity=100_000, split_num=7)
    return HashTable(TableConfig([Segment(2)], name="rare", min_count=3, admission=admission))


def some_ids(count: int, seed: int = 7) -> NDArray[np.int64]:
    random = np.random.default_rng(seed)
    return np.unique(np.concatenate([random.integers(INT64_MIN, INT64_MAX, count), EXTREME_IDS]))


def train(table: HashTable, ids: NDArray[np.int64], *, seed: int = 11, time: int = 1000) -> None:
    gradients = np.random.default_rng(seed).normal(size=(len(ids), table.dim)).astype(np.float32)
    table.apply_gradients(ids, gradients, step=1, time=time)


def trained_group(count: int = 500) -> TableGroup:
    group = two_tables()
    train(group["user"], some_ids(count), time=1000)
    train(group["user"], some_ids(count)[::3], seed=12, time=2000)
    train(group["item"], some_ids(count // 2, seed=8), time=500)
    return group


def state_of(table: HashTable) -> dict[int, tuple[bytes, bytes, int]]:
    """Id to weights, optimizer state and time: bit for bit what the table holds."""
    ids = np.sort(table.ids().numpy())
    rows = table.lookup_rows(ids)
    weights, state, times = (np.asarray(part) for part in (rows.weights, rows.state, rows.time))
    return {int(key): (weights[i].tobytes(), state[i].tobytes(), int(times[i])) for i, key in enumerate(ids)}


def group_state(group: TableGroup) -> dict[str, dict[int, tuple[bytes, bytes, int]]]:
    return {name: state_of(group[name]) for name in group.names}
