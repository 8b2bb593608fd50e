"""One line of hexadecimal digits for each part of a training state: equal if and only if every bit of it is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from monolith.checkpoint import TrainState
from monolith.checkpoint.state_dicts import model_state
from monolith.tables.formats.row_block import BlockKind
from monolith.tables.store import Store

_ALL_BUCKETS = range(1024)


def fingerprint(state: TrainState) -> dict[str, str]:
    """Returns part -> digest. It depends on the id, time, weights and optimizer state of a row, not on its location."""
    state.settle()
    parts = {
        "step": repr(state.global_step).encode(),
        "positions": repr((sorted(state.applied.items()), sorted(state.positions.items()))).encode(),
        "dense": _bytes_of({} if state.model is None else model_state(state.model)),
        "optimizers": _bytes_of({name: each.state_dict() for name, each in state.optimizers.items()}),
        "schedules": _bytes_of({name: each.state_dict() for name, each in state.schedules.items()}),
        "random": torch.get_rng_state().numpy().tobytes(),
    }
    for name, store in state.stores.items():
        parts[f"rows of {name}"], parts[f"filters of {name}"] = _bytes_of_store(store)
    return {name: hashlib.sha256(content).hexdigest() for name, content in parts.items()}


def _bytes_of_store(store: Store) -> tuple[bytes, bytes]:
    rows: list[tuple[int, int, int, bytes]] = []
    filters: list[tuple[int, int, bytes]] = []
    cut = store.cut()
    try:
        for block in cut.blocks(_ALL_BUCKETS, state=True):
            if block.kind is BlockKind.FILTER:
                filters.append((block.table, block.bucket, block.payload.tobytes()))
            elif block.kind is BlockKind.FULL:
                for key, time, payload in zip(block.keys.tolist(), block.times.tolist(), block.payload, strict=True):
                    rows.append((block.table, key, time, payload.tobytes()))
    finally:
        cut.release()
    return repr(sorted(rows)).encode(), repr(sorted(filters)).encode()


def _bytes_of(value: Any) -> bytes:
    """Returns type and content of a tree of plain values and tensors."""
    return b"".join(_pieces(value))


def _pieces(value: Any) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor):
        yield f"tensor {value.dtype} {tuple(value.shape)} ".encode()
        yield np.ascontiguousarray(value.detach().cpu().numpy()).tobytes()
    elif isinstance(value, dict):
        for key in sorted(value, key=repr):
            yield f"{key!r}: ".encode()
            yield from _pieces(value[key])
    elif isinstance(value, list | tuple):
        yield f"{len(value)} of ".encode()
        for each in value:
            yield from _pieces(each)
    else:
        yield f"{type(value).__name__} {value!r}; ".encode()
