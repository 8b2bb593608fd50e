"""How a trainer runs a task: frozen, nested by owner."""

from __future__ import annotations

from monolith.config import Config, config, require_at_least, require_positive
from monolith.train._table_pipeline import PipelineConfig

__all__ = ["PipelineConfig", "SavingConfig", "TrainerConfig"]


@config
class SavingConfig(Config):
    """When checkpoints are made, and which ones stay."""

    every_steps: int | None = None
    """Steps from one to the next."""
    every_seconds: float | None = None
    """Or seconds; with neither there is one at the end only."""
    max_to_keep: int = 10
    """Newest ones that stay."""
    background: bool = False
    """Write while training goes on."""

    def __post_init__(self) -> None:
        if self.every_steps is not None and self.every_seconds is not None:
            raise ValueError(
                f"SavingConfig: give every_steps or every_seconds, got both ({self.every_steps}, {self.every_seconds})"
            )
        for name in ("every_steps", "every_seconds"):
            if getattr(self, name) is not None:
                require_positive(self, name)
        require_at_least(self, 1, "max_to_keep")


@config
class TrainerConfig(Config):
    """Everything that a `Trainer` is told."""

    model_dir: str | None = None
    """Where checkpoints are, a folder or an fsspec URL; None: nothing is saved."""
    model_name: str = ""
    """Under which name the model is known; the task's by default."""
    saving: SavingConfig = SavingConfig()
    """Checkpoints."""
    pipeline: PipelineConfig = PipelineConfig()
    """How far tables and model may be apart."""
    deterministic: bool = False
    """Take time from the data alone, begin with a fixed seed and wait for batches, so that a run can be repeated bit
    for bit."""
    worker_index: int = 0
    """Which worker this is; 0 is the chief, which saves."""
    num_workers: int = 1
    """Workers in all."""

    def __post_init__(self) -> None:
        require_at_least(self, 0, "worker_index")
        require_at_least(self, 1, "num_workers")
        if self.worker_index >= self.num_workers:
            raise ValueError(
                f"TrainerConfig: worker_index must be below num_workers ({self.num_workers}), got {self.worker_index}"
            )
