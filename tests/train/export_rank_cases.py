"""Ranks that export with their checkpoints; `test_exports_of_ranks` asks for what they have written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from monolith import collective
from monolith.train import ExportMode, SavingConfig, Trainer, TrainerConfig
from monolith.train.config.job_config import SyncConfig
from train.exact_clicks import exporting


def trained(folder: Path, saving: SavingConfig, *, sync: SyncConfig | None = None, **serving: Any) -> int:
    """Six steps."""
    config = TrainerConfig(
        model_dir=str(folder / "model"),
        saving=saving,
        deterministic=True,
        worker_index=collective.rank(),
        num_workers=collective.size(),
        sync=SyncConfig() if sync is None else sync,
    )
    trainer = Trainer(exporting(**serving), config)
    return trainer.train(max_steps=6).global_step


def case_together(folder: Path) -> Any:
    """All ranks save into one directory, weights alone at every step."""
    return trained(folder, SavingConfig(every_steps=2, max_to_keep=2, dense_every_steps=1))


def case_apart(folder: Path) -> Any:
    """Each rank saves into a directory of its own, and rows are in as many parts."""
    saving = SavingConfig(every_steps=4, dense_every_steps=5)
    return trained(folder, saving, sync=SyncConfig(own_folders=""), export_mode=ExportMode.DISTRIBUTED)


def case_copied(folder: Path) -> Any:
    """The same, and exports have rows of their own."""
    return trained(folder, SavingConfig(), sync=SyncConfig(own_folders=""), shared_embedding=False)
