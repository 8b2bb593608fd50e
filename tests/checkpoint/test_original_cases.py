"""Cases of the original's save_utils_test that no other file has; docs/parity.md says where each of them is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import monolith as ml
from checkpoint.runs import Run, contents
from contracts.engines import stores_of
from monolith.checkpoint import Saver, TrainState
from monolith.hooks import CheckpointRestorerHook, NoFirstSaveCheckpointSaverHook
from monolith.testing import StepLoop

pytestmark = pytest.mark.usefixtures("on_every_store")


def test_a_plain_loop_and_a_session_read_each_other(tmp_path: Path) -> None:
    run = Run()
    with StepLoop([NoFirstSaveCheckpointSaverHook(Saver(tmp_path), state=run.state)]) as loop:
        for _ in range(3):
            loop.run(run.step)
    plain = Run(seed=2)
    Saver(tmp_path).restore(plain.state)
    assert contents(plain) == contents(run)
    plain.step()
    with Saver(tmp_path) as saver:
        saver.save(plain.state)
    session = Run(seed=3)
    with StepLoop([CheckpointRestorerHook(Saver(tmp_path), state=session.state)]):
        assert contents(session) == contents(plain)


def test_a_checkpoint_that_was_written_again_is_read_again(tmp_path: Path) -> None:
    layer, read = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    with Saver(tmp_path) as saver:
        reader = Saver(tmp_path)
        for value in (1.0, 2.0):
            nn.init.constant_(layer.weight, value)
            saver.save(TrainState(model=layer, global_step=7))
            reader.restore(TrainState(model=read))
            assert read.weight.item() == value
            reader.restore(TrainState(model=read), str(tmp_path / "model.ckpt-7"))
            assert read.weight.item() == value


def test_tables_in_shards_go_with_their_checkpoint(tmp_path: Path) -> None:
    with stores_of("three servers here") as open_store, Saver(tmp_path, max_to_keep=2) as saver:
        model = ml.Embeddings({"user": ml.Slot(2)}, store=open_store)
        state = TrainState(model=model)
        for step in (1, 2, 3):
            model({"user": torch.arange(100 * step)})["user"].sum().backward()
            model.step()
            state.global_step = step
            saver.save(state)
    assert sorted(path.name for path in tmp_path.glob("*.assets")) == ["model.ckpt-2.assets", "model.ckpt-3.assets"]
    whole = ml.Embeddings({"user": ml.Slot(2)})
    Saver(tmp_path).restore(TrainState(model=whole), str(tmp_path / "model.ckpt-2"))
    assert whole.num_rows == 200


class Counter:
    """Something with a state that is no module."""

    def __init__(self, value: int, history: torch.Tensor) -> None:
        self.value, self.history = value, history

    def state_dict(self) -> dict[str, object]:
        return {"value": self.value, "history": self.history}

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        assert isinstance(state_dict["value"], int)
        assert isinstance(state_dict["history"], torch.Tensor)
        self.value, self.history = state_dict["value"], state_dict["history"]


def test_parts_without_a_model(tmp_path: Path) -> None:
    parts = {"v0": Counter(10, torch.tensor([1.0])), "v1": Counter(20, torch.zeros(0))}
    with Saver(tmp_path) as saver:
        saver.save(TrainState(extra=parts))
    again = {"v1": Counter(0, torch.ones(1)), "v0": Counter(0, torch.ones(1)), "new": Counter(5, torch.ones(1))}
    Saver(tmp_path).restore(TrainState(extra=again))
    assert {name: part.value for name, part in again.items()} == {"v0": 10, "v1": 20, "new": 5}
    assert again["v0"].history.tolist() == [1.0]
    assert again["v1"].history.shape == (0,)


def test_without_a_description(tmp_path: Path) -> None:
    with Saver(tmp_path, write_meta=False) as saver:
        saver.save(TrainState(model=nn.Linear(1, 1)))
    assert not list(tmp_path.glob("*.meta"))
    assert Saver(tmp_path).restore(TrainState(model=nn.Linear(1, 1))) is not None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("background", [False, True])
def test_weights_on_a_gpu(tmp_path: Path, *, background: bool) -> None:
    model = nn.Linear(3, 2, device="cuda")
    adam = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3, device="cuda")).sum().backward()
    adam.step()
    with Saver(tmp_path, background=background) as saver:
        saver.save(TrainState(model=model, optimizers={"adam": adam}))
        expected = model.weight.detach().clone()
        with torch.no_grad():
            model.weight.zero_()
    for device in ("cuda", "cpu"):
        again = nn.Linear(3, 2, device=device)
        other = torch.optim.Adam(again.parameters())
        Saver(tmp_path).restore(TrainState(model=again, optimizers={"adam": other}))
        assert torch.equal(again.weight.cpu(), expected.cpu())
        assert other.state[again.weight]["exp_avg"].device.type == device
