"""What a run of one process publishes by its hook: all that a model needs to answer alike, also where it began anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from deltalog.followed import Followed, saved_rows
from monolith.deltalog import DeltaLog, IncrementKind
from monolith.testing import ExampleTask
from monolith.train import PublishingConfig, RestoringConfig, Spec, Trainer, TrainerConfig

if TYPE_CHECKING:
    from pathlib import Path

    from monolith.train import Mode

OFTEN = PublishingConfig(interval=0.1, dense_interval=1e-6)


class Normalised(ExampleTask):
    """With statistics that no optimizer knows."""

    def build(self) -> None:
        super().build()
        self.norm = torch.nn.BatchNorm1d(2 * self.p.dim)

    def model_fn(self, features: Any, mode: Mode) -> Spec:
        logits = self.top(self.norm(self.emb(features).concat())).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, features["label"])
        return Spec(loss, predictions=logits.sigmoid(), label=features["label"])


def config(folder: Path, **restoring: Any) -> TrainerConfig:
    return TrainerConfig(model_dir=str(folder), publishing=OFTEN, restoring=RestoringConfig(**restoring))


@pytest.mark.slow
def test_statistics_of_a_normalisation_reach_followers_with_the_weights(tmp_path: Path) -> None:
    trainer = Trainer(Normalised(), config(tmp_path))
    trainer.train(steps=6)
    expected = saved_rows(trainer)
    assert trainer.state is not None
    model = trainer.state.model
    assert model is not None
    assert model.get_buffer("norm.num_batches_tracked").item() == 6
    with Followed(str(tmp_path / "delta_log"), Normalised) as follower:
        assert follower.catch_up() == expected
        statistics = {f"norm.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
        assert follower.dense.keys() == follower.weights | statistics
        for name in statistics:
            assert torch.equal(follower.dense[name], model.get_buffer(name)), name
        for name, weight in model.named_parameters():
            assert torch.equal(follower.dense[name], weight.detach()), name
        norm = torch.nn.BatchNorm1d(2 * Normalised.params().dim)
        norm.load_state_dict(
            {name.removeprefix("norm."): each for name, each in follower.dense.items() if name.startswith("norm.")}
        )
        assert norm.num_batches_tracked == 6


def test_a_run_that_restarts_its_dense_part_resumes_the_log_where_its_rows_were(tmp_path: Path) -> None:
    """`clear_nn` keeps rows, and so the position of the log: nothing but the rows behind it is published again."""
    Trainer(ExampleTask(), config(tmp_path)).train(steps=4)
    log = DeltaLog(tmp_path / "delta_log")
    with Followed(log.place) as follower:
        follower.catch_up()
        before = follower.follower.version
        old = follower.dense
        trainer = Trainer(ExampleTask(), config(tmp_path, clear_nn=True))
        trainer.train(steps=5)
        expected = saved_rows(trainer)
        assert trainer.state is not None
        assert trainer.state.global_step == 5, "its steps began anew, too"
        assert trainer.state.model is not None
        assert follower.catch_up() == expected
        for name, weight in trainer.state.model.named_parameters():
            assert torch.equal(follower.dense[name], weight.detach()), name
        assert not torch.equal(old["top.weight"], follower.dense["top.weight"])
        for part, number in follower.follower.version.items():
            assert number > before[part]
            with log.open_reader(part, number=before[part] + 1) as reader:
                opening = next(each for each in reader if each.kind is IncrementKind.OPENING)
            assert opening.base is None, "followers need no base"
    assert {base.kind for base in log.bases()} == {"checkpoint"}


def test_a_run_without_a_directory_names_its_log() -> None:
    with pytest.raises(ValueError, match=r"give model_dir or publishing\.log"):
        TrainerConfig(publishing=OFTEN)
