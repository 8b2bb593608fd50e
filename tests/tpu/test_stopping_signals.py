"""Stopping signals: empty batches behind the data, a run that ends by them and saves, positions as without them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from monolith.data import Batch, InMemoryDataset
from monolith.errors import InvalidArgumentError
from monolith.tensors import Ragged
from monolith.testing import ExampleTask, NumberedBatches
from monolith.tpu import TpuConfig, TPURunner, with_stopping_signals
from monolith.tpu.jax_task import GlobalBatches, global_batches
from monolith.tpu.stopping_signals import STOPPING_SIGNAL
from monolith.train import Trainer, TrainerConfig
from tpu.jax_tasks import assert_close, jax_task, train_by_torch

BATCH = Batch({"tags": Ragged.from_lists([[1, 2], [3]]), "x": torch.ones(2, 3), "text": [b"a", b"b"]})


@pytest.mark.parametrize("make", [list, InMemoryDataset], ids=["list", "dataset"])
def test_empty_batches_with_the_signal_follow_without_end(make: Any) -> None:
    batches = list(itertools.islice(with_stopping_signals(make([BATCH, BATCH])), 6))
    assert [batch[STOPPING_SIGNAL].tolist() for batch in batches] == [[False] * 2] * 2 + [[True] * 2] * 4
    assert batches[0].features is BATCH
    last = batches[-1]
    assert set(last) == {"tags", "x", "text", STOPPING_SIGNAL}
    assert len(last) == 4
    assert last.num_rows == 2
    assert last["tags"].num_rows == 2
    assert len(last["tags"].values) == 0
    assert torch.equal(last["x"], torch.zeros(2, 3))


def test_nothing_follows_nothing() -> None:
    assert list(with_stopping_signals([])) == []


def test_a_batch_that_has_such_a_column_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="column 'stopping_signal' of a batch is the signal's"):
        list(with_stopping_signals([{STOPPING_SIGNAL: torch.ones(1)}]))
    with pytest.raises(InvalidArgumentError, match="must be mappings, got int"):
        list(with_stopping_signals([5]))


def test_positions_are_those_of_the_data() -> None:
    reading = with_stopping_signals(NumberedBatches(num_batches=3)).read(b"1")  # type: ignore[union-attr]
    seen = [(bool(next(reading)[STOPPING_SIGNAL].any()), reading.position) for _ in range(4)]
    assert seen == [(False, b"2"), (False, b"3"), (True, b"3"), (True, b"3")]


@pytest.mark.parametrize("pipelined", [False, True])
def test_a_signal_ends_a_run_with_a_checkpoint_from_which_torch_resumes(tmp_path: Path, pipelined: bool) -> None:
    options = TpuConfig(
        cpu_test=True, model_dir=str(tmp_path / "m"), enable_stopping_signals=True, pipeline_execution=pipelined
    )
    torch.manual_seed(3)
    state = TPURunner(ExampleTask.params(), options).run()
    assert not isinstance(state, dict)
    assert state.history is not None
    assert (state.global_step, state.history.ended_by) == (20, "stop")
    assert (tmp_path / "m" / "model.ckpt-20.manifest").is_file()
    more = ExampleTask.params()
    more.num_batches = 25  # without signals and without JAX, from where the data ended
    assert Trainer(more, TrainerConfig(model_dir=str(tmp_path / "m"))).train().global_step == 25


def test_the_signal_changes_no_weight() -> None:
    task = jax_task(ExampleTask(), stopping_signals=True)
    assert_close(Trainer(task, TrainerConfig(deterministic=True)).train(), train_by_torch(ExampleTask()), ExampleTask())


def test_data_that_repeats_without_end_never_has_a_signal() -> None:
    params = ExampleTask.params()
    params.train.repeat = True
    with pytest.raises(ValueError, match=r"repeats its data without end \(train\.repeat\)"):
        TPURunner(params, TpuConfig(cpu_test=True, enable_stopping_signals=True))


def test_a_global_batch_has_the_rows_of_all_replicas_and_the_position_of_the_last() -> None:
    source = NumberedBatches(num_batches=5, batch_size=4)
    reading = GlobalBatches(source, 2).read()
    batches = [(next(reading), reading.position) for _ in range(3)]
    assert [(batch.num_rows, position) for batch, position in batches] == [(8, b"2"), (8, b"4"), (4, b"5")]
    first = batches[0][0]["user"]
    assert torch.equal(torch.as_tensor(first), torch.cat([source.make(0)["user"], source.make(1)["user"]]))  # type: ignore[list-item]
    with pytest.raises(StopIteration):
        next(reading)


def test_dictionaries_are_joined_and_other_things_refused() -> None:
    joined = list(global_batches(InMemoryDataset([{"x": torch.ones(1)}, {"x": torch.zeros(2)}]), 2))
    assert joined[0]["x"].tolist() == [1.0, 0.0, 0.0]
    batches = [{"x": torch.ones(1)}]
    assert global_batches(batches, 1) is batches
    with pytest.raises(InvalidArgumentError, match="must return a Dataset, whose batches can be joined for 8 replicas"):
        global_batches(batches, 8)
    with pytest.raises(InvalidArgumentError, match="columns by name expected, got int"):
        list(global_batches(InMemoryDataset([1, 2]), 2))
