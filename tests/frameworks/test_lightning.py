"""Lightning's Trainer and Fabric train, save and load models with rows as any others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, TensorDataset

import monolith as ml
from frameworks.ranker import IDS, Ranker, by_hand, predictions

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:torch.*"
)


class Module(lightning.LightningModule):
    """One optimizer with both in it: automatic optimization takes one only."""

    def __init__(self) -> None:
        super().__init__()
        self.ranker = Ranker()

    def training_step(self, batch: Sequence[torch.Tensor], _: int) -> Any:
        return self.ranker.loss(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.ranker.emb.optimizer(torch.optim.Adam(self.ranker.tower.parameters(), lr=0.1))


class Manual(Module):
    """Two optimizers beside each other."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Sequence[torch.Tensor], _: int) -> Any:
        optimizers: Any = self.optimizers()
        for each in optimizers:
            each.zero_grad()
        self.manual_backward(self.ranker.loss(batch[0]))
        for each in optimizers:
            each.step()

    def configure_optimizers(self) -> Any:
        ranker = self.ranker
        return torch.optim.Adam(ranker.tower.parameters(), lr=0.1), ranker.emb.optimizer()


def trainer(folder: Path, epochs: int) -> lightning.Trainer:
    return lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def batches() -> DataLoader[Any]:
    """Two of an epoch, all alike."""
    return DataLoader(TensorDataset(IDS.repeat(2, 1)), batch_size=None)


@pytest.mark.parametrize("kind", [Module, Manual])
def test_a_trainer_trains_saves_and_resumes_bit_for_bit(kind: type[Module], tmp_path: Path) -> None:
    module = kind()
    first = trainer(tmp_path, 1)
    first.fit(module, batches())
    assert predictions(module.ranker) == predictions(by_hand(2, stride=0))
    first.save_checkpoint(tmp_path / "at.ckpt")
    resumed = kind()
    trainer(tmp_path, 2).fit(resumed, batches(), ckpt_path=tmp_path / "at.ckpt")
    assert predictions(resumed.ranker) == predictions(by_hand(4, stride=0))


class Wide(lightning.LightningModule):
    """Many rows, and one weight beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = ml.Embeddings({"user": ml.Slot(32)})
        self.weight = torch.nn.Parameter(torch.ones(1))

    def training_step(self, batch: Sequence[torch.Tensor], _: int) -> Any:
        return self.weight * self.emb({"user": batch[0]}).concat().sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.emb.optimizer(torch.optim.SGD([self.weight]))


@pytest.mark.slow
def test_a_checkpoint_above_64_mib_has_the_rows(tmp_path: Path) -> None:
    module, ids = Wide(), torch.arange(260_000)
    made = trainer(tmp_path, 1)
    made.fit(module, DataLoader(TensorDataset(ids.view(1, -1)), batch_size=None))
    made.save_checkpoint(tmp_path / "at.ckpt")
    assert (tmp_path / "at.ckpt").stat().st_size > 64 << 20
    fresh = Wide.load_from_checkpoint(tmp_path / "at.ckpt")
    assert torch.equal(fresh.emb.lookup("user", ids), module.emb.lookup("user", ids))
    assert fresh.emb.num_rows == 260_000


def test_fabric_trains_saves_and_loads_bit_for_bit(tmp_path: Path) -> None:
    fabric = Fabric(accelerator="cpu", devices=1)

    def setup() -> tuple[Ranker, Any, Any, Any]:
        ranker = Ranker()
        adam, rows = torch.optim.Adam(ranker.tower.parameters(), lr=0.1), ranker.emb.optimizer()
        return ranker, *fabric.setup(ranker, adam, rows)

    def train(model: Any, adam: Any, rows: Any, steps: range) -> None:
        for step in steps:
            for each in (adam, rows):
                each.zero_grad()
            fabric.backward((model(IDS + step) - 1).square().mean())
            for each in (adam, rows):
                each.step()

    ranker, model, adam, rows = setup()
    train(model, adam, rows, range(2))
    fabric.save(tmp_path / "fabric.ckpt", {"model": model, "adam": adam, "rows": rows})
    fresh, model, adam, rows = setup()
    fabric.load(tmp_path / "fabric.ckpt", {"model": model, "adam": adam, "rows": rows})
    assert predictions(fresh) == predictions(ranker) == predictions(by_hand(2))
    train(model, adam, rows, range(2, 4))
    assert predictions(fresh) == predictions(by_hand(4))
