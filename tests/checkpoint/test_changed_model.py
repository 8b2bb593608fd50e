"""A model that changed since it was saved: the message says what, and options say how to go on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import monolith as ml
from monolith.checkpoint import RestoreConfig, Saver, TrainState
from monolith.errors import FailedPreconditionError, InvalidArgumentError


class Ranker(nn.Module):
    def __init__(self, width: int = 4, *, extra: bool = False) -> None:
        super().__init__()
        self.emb = ml.Embeddings({"user": ml.Slot(2)})
        self.tower = nn.Linear(2, width)
        self.head = nn.Linear(width, 1)
        if extra:
            self.scale = nn.Parameter(torch.ones(3))
        else:
            self.old = nn.Parameter(torch.ones(2))

    def forward(self) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.tower(self.emb({"user": torch.arange(5)})["user"]))
        return logits


def run_of(model: Ranker) -> TrainState:
    return TrainState(model=model, optimizers={"adam": torch.optim.Adam(model.parameters(), lr=0.1)})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    state = run_of(Ranker())
    assert isinstance(state.model, Ranker)
    state.model().sum().backward()
    state.optimizers["adam"].step()
    state.model.emb.step()
    state.global_step = 7
    with Saver(tmp_path) as saver:
        saver.save(state)
    return tmp_path


def test_the_message_names_every_weight_that_changed_and_the_ways_on(folder: Path) -> None:
    with pytest.raises(FailedPreconditionError) as refused:
        Saver(folder).restore(run_of(Ranker(6, extra=True)))
    assert str(refused.value) == (
        "restore: the model is not the one that was saved: 'head.weight' was saved with shape (1, 4), now (1, 6);"
        " 'old' was removed, shape (2,); 'scale' is new, shape (3,); 'tower.bias' was saved with shape (4,), now (6,);"
        " 'tower.weight' was saved with shape (4, 2), now (6, 2). Build it as it was; or have these weights start from"
        " their initial values by RestoreConfig(leave_out=['head.weight', 'old', 'scale', 'tower.bias',"
        " 'tower.weight']) or --leave_out 'head.weight,old,scale,tower.bias,tower.weight', all dense weights by"
        " clear_nn=True, and everything by another model directory; weights that were renamed are found by alias_map,"
        " and those of which only the shape differs by reshape=True"
    )


def test_a_long_list_is_cut(tmp_path: Path) -> None:
    with Saver(tmp_path) as saver:
        saver.save(TrainState(model=nn.ModuleList(nn.Linear(1, 1) for _ in range(6))))
    with pytest.raises(
        FailedPreconditionError, match=r"'3.weight' was .*; and 4 more\. .*leave_out=\['0.bias', \.\.\.\]"
    ):
        Saver(tmp_path).restore(TrainState(model=nn.ModuleList(nn.Linear(2, 2) for _ in range(6))))


@pytest.mark.parametrize(
    "names", [["head.weight", "old", "scale", "tower.bias", "tower.weight"], ["*.*ght", "old", "scale", "tower.*"]]
)
def test_excluded_weights_start_from_scratch_and_the_others_resume(folder: Path, names: list[str]) -> None:
    state = run_of(Ranker(6, extra=True))
    assert isinstance(state.model, Ranker)
    before = state.model.tower.weight.detach().clone()
    saved = Ranker()
    ml.load(saved, folder)
    Saver(folder).restore(state, options=RestoreConfig(leave_out=names))
    assert torch.equal(state.model.tower.weight, before)
    assert torch.equal(state.model.head.bias, saved.head.bias)
    assert (state.model.emb.num_rows, state.global_step) == (5, 7)
    has_state = {name for name, each in state.model.named_parameters() if each in state.optimizers["adam"].state}
    assert has_state == {"head.bias", "emb._anchor"}
    state.model().sum().backward()
    state.optimizers["adam"].step()


def test_a_name_that_no_weight_has_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"leave_out names \['towr.*'\], but neither .* has such a weight"):
        Saver(folder).restore(run_of(Ranker()), options=RestoreConfig(leave_out=["towr.*"]))
    with pytest.raises(InvalidArgumentError, match="leave_out takes a list of names"):
        RestoreConfig(leave_out="tower.*")
    with pytest.raises(InvalidArgumentError, match="leave_out has no effect"):
        RestoreConfig(leave_out=["tower.*"], clear_nn=True)
