"""A checkpoint has the input positions of all workers whose batches are in the rows, whichever process saves it."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from monolith.checkpoint import Saver, TrainState
from monolith.nn import Embeddings, Slot
from monolith.tables.batch import BatchStamp
from monolith.tables.history import ALL_BUCKETS, OwnerClock


def stamp(worker: int, seq: int) -> BatchStamp:
    return BatchStamp(worker=worker, seq=seq, position=b"%d of worker %d" % (seq, worker))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = Embeddings({"user": Slot(dim=2)})


@pytest.mark.parametrize(
    ("here", "in_rows", "saved"),
    [
        ({0: 4}, {0: 4, 1: 7}, {0: 4, 1: 7}),
        ({0: 4, 1: 3}, {0: 4, 1: 7}, {0: 4, 1: 7}),  # restored at 3, and that worker went on since
        ({0: 4, 2: 9}, {0: 4}, {0: 4, 2: 9}),
        ({0: 4}, {}, {0: 4}),
    ],
)
def test_positions_of_workers_that_other_processes_train_are_saved(
    tmp_path: Path, here: dict[int, int], in_rows: dict[int, int], saved: dict[int, int]
) -> None:
    state = TrainState(model=Model())
    for store in state.stores.values():
        clock = OwnerClock(ALL_BUCKETS, {worker: stamp(worker, seq) for worker, seq in in_rows.items()})
        store.resume(applied=[clock], generation=0)
    state.applied = {worker: stamp(worker, seq) for worker, seq in here.items()}
    with Saver(str(tmp_path)) as saver:
        saver.save(state, background=False)
        fresh = TrainState(model=Model())
        saver.restore(fresh)
    assert {worker: each.seq for worker, each in fresh.applied.items()} == saved
    assert all(fresh.position(worker) == stamp(worker, seq).position for worker, seq in saved.items())
