"""Writes the snapshot beside it and what it must give back. Run once; kept so that one can see what the files hold.

Usage: python tests/format/v2/make.py
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from monolith.tables import (
    BatchStamp,
    OwnerClock,
    Segment,
    TableConfig,
    TableGroup,
    compressors,
    filters,
    row_optimizers,
)
from monolith.tables.history import ALL_BUCKETS
from monolith.tables.snapshot import save
from monolith.tables.snapshot.manifest import Json


def group() -> TableGroup:
    """Two tables of two segments with state, and a filter."""
    admission = filters.SlidingHashFilter(capacity=1024 * 64)
    user = TableConfig(
        [
            Segment(2, optimizer=row_optimizers.Adagrad(learning_rate=0.1, initial_accumulator_value=0.5)),
            Segment(1, optimizer=row_optimizers.Adam(), compressor=compressors.Fp16()),
        ],
        name="user",
        min_count=1,
        admission=admission,
    )
    item = TableConfig([Segment(1)], name="item")
    return TableGroup({"user": user, "item": item})


def fill(tables: TableGroup) -> None:
    """Ids 0 to 19 and the extremes; id 3 is removed again."""
    ids = np.array([*range(20), -(2**63), 2**63 - 1], np.int64)
    weights = np.stack([np.arange(len(ids)) + 0.25 * column for column in range(3)], axis=1).astype(np.float32)
    tables["item"].assign(ids, weights[:, :1], time=1_600_000_000)
    for _ in range(2):  # the first occurrence is only counted
        tables["user"].apply_gradients(ids, weights, step=1, time=1_700_000_000)
    tables["user"].erase(np.array([3]))


def contents(tables: TableGroup) -> dict[str, dict[str, list[str | int]]]:
    """Table to id to weights, state (both in hexadecimal) and time."""
    found: dict[str, dict[str, list[str | int]]] = {}
    for name in tables.names:
        ids = np.sort(tables[name].ids().numpy())
        rows = tables[name].lookup_rows(ids)
        weights, state, time = (np.asarray(part) for part in (rows.weights, rows.state, rows.time))
        found[name] = {
            str(key): [weights[i].tobytes().hex(), state[i].tobytes().hex(), int(time[i])]
            for i, key in enumerate(ids.tolist())
        }
    return found


if __name__ == "__main__":
    made = group()
    stamp = BatchStamp(worker=3, seq=41, position=b"\xffhere", event_time_ms=1_700_000_000_123)
    made.store.resume(applied=[OwnerClock(ALL_BUCKETS, {3: stamp})], generation=0)
    made.mark()
    fill(made)
    folder = Path(__file__).parent
    extra: Json = {"made_by": f"tests/format/{folder.name}/make.py"}
    save(made.store, folder / "snapshot", num_files=2, extra=extra, generation=7)
    (folder / "contents.json").write_text(json.dumps(contents(made), indent=1) + "\n")
