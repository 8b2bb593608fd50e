"""fp16 with a GradScaler through Lightning, Fabric and Accelerate: rows learn as a table of torch does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision import MixedPrecision as FabricPrecision
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.utils.data import DataLoader, TensorDataset

from nn.dense_twin import DEVICES, Dense, Sparse

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore::UserWarning:torch.*",
    "ignore::UserWarning:lightning.*",
)
IDS = torch.tensor([1, 2, 2, 5])
FACTORS = [0.01, 1e38, 0.02, 0.01]
"""Of the loss of each batch; the second one is infinite after scaling, so that its step is skipped."""
LIMIT = 0.05
SCALE = 1024.0


def scaler_of(device: str) -> torch.amp.GradScaler:
    return torch.amp.GradScaler(device, init_scale=SCALE)


class Module(lightning.LightningModule):
    def __init__(self, model: Dense) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: Sequence[torch.Tensor], _: int) -> Any:
        return self.model.loss(batch[0]) * batch[1]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.model.optimizer()


def by_lightning(model: Dense, device: str, folder: Path) -> float:
    scaler = scaler_of(device)
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator=device,
        devices=1,
        plugins=[MixedPrecision("16-mixed", device, scaler)],
        gradient_clip_val=LIMIT,
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    batches = TensorDataset(IDS.repeat(len(FACTORS), 1), torch.tensor(FACTORS))
    trainer.fit(Module(model), DataLoader(batches, batch_size=None))
    return scaler.get_scale()


def by_fabric(model: Dense, device: str, folder: Path) -> float:
    scaler = scaler_of(device)
    fabric = Fabric(accelerator=device, devices=1, plugins=[FabricPrecision("16-mixed", device, scaler)])
    wrapped, optimizer = fabric.setup(model, model.optimizer())
    wrapped.mark_forward_method("loss")
    for factor in FACTORS:
        optimizer.zero_grad()
        fabric.backward(wrapped.loss(IDS.to(device)) * factor)
        fabric.clip_gradients(wrapped, optimizer, max_norm=LIMIT, error_if_nonfinite=False)
        optimizer.step()
    return scaler.get_scale()


def by_accelerate(model: Dense, device: str, folder: Path) -> float:
    AcceleratorState._reset_state(reset_partial_state=True)  # the precision is one for the process
    accelerator = Accelerator(cpu=device == "cpu", mixed_precision="fp16")
    accelerator.native_amp, accelerator.scaler = True, scaler_of(device)  # Accelerate has neither on a CPU
    prepared, optimizer = accelerator.prepare(model, model.optimizer())
    skipped = []
    for factor in FACTORS:
        optimizer.zero_grad()
        with accelerator.autocast():
            loss = accelerator.unwrap_model(prepared).loss(IDS.to(device)) * factor
        accelerator.backward(loss)
        accelerator.clip_grad_norm_([each for group in optimizer.param_groups for each in group["params"]], LIMIT)
        optimizer.step()
        skipped.append(optimizer.step_was_skipped)
    assert skipped == [False, True, False, False]
    accelerator.free_memory()
    AcceleratorState._reset_state(reset_partial_state=True)
    return float(accelerator.scaler.get_scale())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", [by_lightning, by_fabric, by_accelerate])
def test_rows_learn_under_a_scaler_as_a_table_of_torch(
    way: Callable[[Dense, str, Path], float], device: str, tmp_path: Path
) -> None:
    found = []
    for kind in (Dense, Sparse):
        model = kind()
        assert way(model, device, tmp_path) == SCALE / 2
        found.append((model.weights(), model.tower.weight.detach().cpu()))
    assert found[1][0].abs().max() > 1e-3
    torch.testing.assert_close(found[1], found[0])
