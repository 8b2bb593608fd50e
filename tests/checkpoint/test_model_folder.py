"""`ml.save` and `ml.load`: a model of any size by one call each."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import monolith as ml
from checkpoint.runs import Run
from checkpoint.zygote import Zygote
from monolith.checkpoint import RestoreConfig, Saver
from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError

IDS = torch.arange(40)


class Ranker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = ml.Embeddings({"user": ml.Slot(3)}, rows_in_state_dict=False)
        self.tower = nn.Linear(3, 1)

    def forward(self) -> torch.Tensor:
        logits: torch.Tensor = self.tower(self.emb({"user": IDS}).concat())
        return logits


class Trained:
    def __init__(self, steps: int = 0) -> None:
        torch.manual_seed(3)
        self.model = Ranker()
        self.adam = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.train(steps)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.adam.zero_grad()
            self.model().square().mean().backward()
            self.adam.step()
            self.model.emb.step()


def predictions(model: Ranker) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model()
        return logits


@pytest.mark.parametrize("names", [False, True])
@pytest.mark.usefixtures("on_every_store")
def test_a_model_resumes_bit_for_bit_in_a_fresh_one(tmp_path: Path, *, names: bool) -> None:
    run = Trained(3)
    ml.save(run.model, tmp_path / "m", optimizer={"adam": run.adam} if names else run.adam)
    run.train(2)
    fresh = Trained()
    draws = torch.get_rng_state()
    ml.load(fresh.model, tmp_path / "m", optimizer={"adam": fresh.adam} if names else fresh.adam)
    assert torch.equal(torch.get_rng_state(), draws), "random generators are not the model's"
    fresh.train(2)
    assert torch.equal(predictions(fresh.model), predictions(run.model))
    assert fresh.model.emb.global_step == 5


@pytest.mark.slow
def test_a_saved_model_is_read_by_another_process(zygote: Zygote, tmp_path: Path) -> None:
    run = Trained(3)
    ml.save(run.model, tmp_path / "m")
    code = (
        "import monolith as ml\n"
        "from checkpoint.test_model_folder import Trained, predictions\n"
        "fresh = Trained()\n"
        "ml.load(fresh.model, arguments[0])\n"
        "print(predictions(fresh.model).flatten().tolist())\n"
    )
    assert zygote.run(code, str(tmp_path / "m")) == ([predictions(run.model).flatten().tolist()], 0)


def test_saving_again_replaces_the_model_and_leaves_one(tmp_path: Path) -> None:
    run = Trained(1)
    first = ml.save(run.model, tmp_path)
    run.train(1)
    second = ml.save(run.model, tmp_path)
    assert (first.path, first.generation + 1) == (second.path, second.generation)
    assert [path.name for path in tmp_path.glob("*.manifest")] == ["model-0.manifest"]
    assert len(list(tmp_path.glob("*.safetensors"))) == 1
    fresh = Trained()
    ml.load(fresh.model, tmp_path)
    assert torch.equal(predictions(fresh.model), predictions(run.model))


def test_a_failed_save_keeps_the_previous_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Trained(1)
    ml.save(run.model, tmp_path)
    expected = predictions(run.model)
    run.train(1)
    monkeypatch.setattr("monolith.checkpoint.writing.write_tensors", _fails)
    with pytest.raises(OSError, match="no space"):
        ml.save(run.model, tmp_path)
    fresh = Trained()
    ml.load(fresh.model, tmp_path)
    assert torch.equal(predictions(fresh.model), expected)


def _fails(*_: object, **__: object) -> None:
    raise OSError("no space")


def test_models_without_rows_and_with_several_modules_of_one_store(tmp_path: Path) -> None:
    linear = nn.Linear(2, 1)
    ml.save(linear, tmp_path / "linear")
    other = nn.Linear(2, 1)
    ml.load(other, tmp_path / "linear")
    assert torch.equal(other.weight, linear.weight)
    emb = Trained(2).model.emb
    shared = ml.Embeddings({"user": ml.Slot(3)}, store=emb.store)
    ml.save(nn.ModuleDict({"a": emb, "b": shared}), tmp_path / "two")
    fresh = ml.Embeddings({"user": ml.Slot(3)})
    ml.load(nn.ModuleDict({"a": fresh, "b": ml.Embeddings({"user": ml.Slot(3)}, store=fresh.store)}), tmp_path / "two")
    assert torch.equal(fresh.lookup("user", IDS), emb.lookup("user", IDS))


def test_the_checkpoint_of_a_run_is_loaded_and_not_written_over(tmp_path: Path) -> None:
    run = Run()
    with Saver(tmp_path) as saver:
        for _ in range(5):
            run.step()
            saver.save(run.state)
    for path, step in ((tmp_path, 5), (tmp_path / "model.ckpt-4", 4), (tmp_path / "model.ckpt-4.manifest", 4)):
        fresh = Run()
        assert ml.load(fresh.model, path).step == step
        assert fresh.model.emb.num_rows > 0
    with pytest.raises(InvalidArgumentError, match=r"has the checkpoints of a run, such as 'model.ckpt-\d.manifest'"):
        ml.save(run.model, tmp_path)


def test_errors_for_wrong_paths_suggest_the_fix(tmp_path: Path) -> None:
    model = Trained().model
    with pytest.raises(NotFoundError, match=r"has no saved model; save one by ml.save"):
        ml.load(model, tmp_path / "nothing")
    file = tmp_path / "model.pt"
    file.touch()
    with pytest.raises(InvalidArgumentError, match=r"this is a file; name a folder.*load_state_dict"):
        ml.save(model, file)
    with pytest.raises(InvalidArgumentError, match="this is a file"):
        ml.load(model, file)


def test_requesting_optimizers_that_were_not_saved_raises(tmp_path: Path) -> None:
    run = Trained(1)
    ml.save(run.model, tmp_path)
    before = copy.deepcopy(run.model.tower.weight)
    with pytest.raises(FailedPreconditionError, match=r"has optimizers \[\], not \['optimizer'\]"):
        ml.load(run.model, tmp_path, optimizer=run.adam)
    assert torch.equal(run.model.tower.weight, before)


def test_options_of_restoring_apply(tmp_path: Path) -> None:
    run = Trained(2)
    ml.save(run.model, tmp_path)
    fresh = Trained()
    fresh.model.tower.weight.data.fill_(7)
    ml.load(fresh.model, tmp_path, options=RestoreConfig(clear_nn=True))
    assert fresh.model.tower.weight.eq(7).all()
    assert fresh.model.emb.num_rows == len(IDS)
