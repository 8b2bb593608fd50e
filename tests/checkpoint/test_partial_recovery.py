"""Restoring only what was lost: the original's two cases, and their parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import monolith as ml
from contracts.engines import StoreFactory, engine
from monolith.checkpoint import PsMonitor, Saver, SaverBuilder, TrainState
from monolith.checkpoint.state_files import MONOLITH_CHECKPOINT
from monolith.errors import InvalidArgumentError
from monolith.hooks import (
    CheckpointRestorerHook,
    HashTableCheckpointRestorerListener,
    HashTableCheckpointSaverListener,
    NoFirstSaveCheckpointSaverHook,
)
from monolith.testing import StepLoop

pytestmark = pytest.mark.usefixtures("on_every_store")


@pytest.fixture(scope="module", params=["local", "reference", pytest.param("pipe", marks=pytest.mark.slow)])
def make_store(request: pytest.FixtureRequest) -> Iterator[StoreFactory]:
    """Builds a store without servers: devices are modules here, and servers in tests/ps/test_lost_servers.py."""
    with engine(request.param) as factory:
        yield factory


class Server(nn.Module):
    """What lives on one parameter server: a variable and a table, both counted up by each step."""

    def __init__(self) -> None:
        super().__init__()
        self.v: torch.Tensor
        self.register_buffer("v", torch.zeros(()))
        self.table = ml.Embeddings(
            {"id": ml.Slot(1, initializer=ml.initializers.Zeros())}, ml.row_optimizers.Sgd(learning_rate=1.0)
        )

    def train_step(self) -> None:
        self.v += 1
        (-self.table({"id": torch.tensor([7])})["id"].sum()).backward()
        self.table.step()

    @property
    def values(self) -> tuple[float, float]:
        return float(self.v), float(self.table.lookup("id", torch.tensor([7])))


def cluster(*servers: Server) -> TrainState:
    return TrainState(model=nn.ModuleDict({f"ps_{number}": server for number, server in enumerate(servers)}))


def values(state: TrainState) -> list[tuple[float, float]]:
    assert isinstance(state.model, nn.ModuleDict)
    return [server.values for server in state.model.values() if isinstance(server, Server)]


def train_step(state: TrainState) -> None:
    assert isinstance(state.model, nn.ModuleDict)
    for server in state.model.values():
        assert isinstance(server, Server)
        server.train_step()
    state.global_step += 1


def session(state: TrainState, saver: Saver, *, steps: int) -> None:
    hooks = [CheckpointRestorerHook(saver, state=state), NoFirstSaveCheckpointSaverHook(saver, state=state)]
    with StepLoop(hooks) as loop:
        for _ in range(steps):
            loop.run(lambda: train_step(state))


def test_restore_with_ps_monitor(tmp_path: Path) -> None:
    monitor = PsMonitor(2)
    first = Server()
    old = cluster(first, Server())
    session(old, Saver(tmp_path, ps_monitor=monitor), steps=1)
    assert values(old) == [(1, 1), (1, 1)]
    train_step(old)  # without any hook
    assert values(old) == [(2, 2), (2, 2)]

    new = cluster(Server(), Server())
    session(new, Saver(tmp_path, ps_monitor=monitor), steps=0)
    assert values(new) == [(1, 1), (1, 1)]

    mixed = cluster(first, Server())
    assert not monitor.is_ps_uninitialized(mixed, "/job:ps/task:0")
    assert monitor.is_ps_uninitialized(mixed, "/job:ps/task:1")
    mixed.global_step = old.global_step
    session(mixed, Saver(tmp_path, ps_monitor=monitor), steps=0)
    assert values(mixed) == [(2, 2), (1, 1)]
    assert mixed.global_step == 2  # the run goes on where it is
    assert not monitor.is_ps_uninitialized(mixed, "/job:ps/task:1")
    train_step(mixed)
    assert values(mixed) == [(3, 3), (2, 2)]


def test_restore_without_ps_monitor(tmp_path: Path) -> None:
    state = cluster(Server(), Server())
    session(state, Saver(tmp_path), steps=1)
    train_step(state)
    session(state, Saver(tmp_path), steps=0)
    assert values(state) == [(1, 1), (1, 1)]
    assert state.global_step == 1


@pytest.mark.parametrize("monitored", [False, True])
def test_listeners_save_tables_alongside_a_dense_saver(tmp_path: Path, *, monitored: bool) -> None:
    monitor = PsMonitor(2) if monitored else None
    basename = f"{tmp_path}/model.ckpt"
    first = Server()

    def run(state: TrainState, steps: int) -> None:
        saver = Saver(tmp_path, ps_monitor=monitor, dense_only=True)
        tables = HashTableCheckpointRestorerListener(basename, state=state, ps_monitor=monitor)
        restorer = CheckpointRestorerHook(saver, state=state, listeners=[tables])
        listeners = [HashTableCheckpointSaverListener(basename, state=state)]
        saving = NoFirstSaveCheckpointSaverHook(saver, state=state, listeners=listeners, save_steps=1)
        with StepLoop([restorer, saving]) as loop:
            for _ in range(steps):
                loop.run(lambda: train_step(state))

    old = cluster(first, Server())
    run(old, 1)
    assert sorted(path.name for path in (tmp_path / "model.ckpt-1.assets").iterdir()) == ["ps_0.table", "ps_1.table"]
    train_step(old)
    mixed = cluster(first, Server())
    run(mixed, 0)
    assert values(mixed) == ([(2, 2), (1, 1)] if monitored else [(1, 1), (1, 1)])
    train_step(mixed)
    assert values(mixed)[1] == (2, 2)


def test_tables_that_stand_alone_are_taken_and_nothing_is_nothing(tmp_path: Path) -> None:
    state = cluster(Server())
    train_step(state)
    basename = f"{tmp_path}/model.ckpt"
    with StepLoop() as loop:
        HashTableCheckpointRestorerListener(basename, state=state).before_restore(loop)
        assert values(state) == [(1, 1)]
        HashTableCheckpointSaverListener(basename, state=state).before_save(loop, 1)
        train_step(state)
        HashTableCheckpointRestorerListener(basename, state=state).before_restore(loop)
    assert values(state) == [(2, 1)]


def test_what_is_restored_where() -> None:
    state = cluster(Server(), Server())
    assert state.model is not None
    state.model.add_module("tower", nn.Linear(1, 1, bias=False))
    builder = SaverBuilder({"ps_0": "a", "ps_1": "b", "ps_1.table": "c"}).build(state)
    ops = builder.restore_ops_per_device
    assert {device: each.weights for device, each in ops.items()} == {
        "": ("tower.weight",),
        "a": ("ps_0.v", "ps_0.table._extra_state"),
        "b": ("ps_1.v",),
        "c": ("ps_1.table._extra_state",),
    }
    assert ops["c"].stores == ("ps_1.table",)
    assert SaverBuilder({}).restore_ops_per_device == {}


def test_unknown_devices_and_modules_are_named() -> None:
    state = cluster(Server())
    with pytest.raises(InvalidArgumentError, match=r"unknown device 'x'; there are \['/job:ps/task:0'\]"):
        PsMonitor(1).is_ps_uninitialized(state, "x")
    with pytest.raises(InvalidArgumentError, match="the model has no module 'ps_1'"):
        PsMonitor(2).setup_ps_initialized_state(state)


def test_exempt_paths_are_read_on_request(tmp_path: Path) -> None:
    with Saver(tmp_path) as saver:
        assert saver.exempt_checkpoint_paths == []
        saver.save(TrainState(global_step=1))
        (tmp_path / MONOLITH_CHECKPOINT).write_text('exempt_model_checkpoint_paths: "model.ckpt-1"\n')
        assert saver.exempt_checkpoint_paths == [f"{tmp_path}/model.ckpt-1"]
    assert isinstance(saver, Saver)
