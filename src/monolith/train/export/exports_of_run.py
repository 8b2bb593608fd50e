"""What a run exports with its checkpoints, by its task's parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from monolith.files import dirname, join
from monolith.train._chief_hooks import DENSE_ONLY
from monolith.train.compat.task_parameters import ExportMode

if TYPE_CHECKING:
    from monolith.checkpoint import Saver
    from monolith.train.config.trainer_config import TrainerConfig
    from monolith.train.parameters.params import Params
    from monolith.train.rank_part import RankPart

__all__ = ["ExportsOfRun", "num_shards"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportsOfRun:
    """What a run exports with its checkpoints."""

    path: str
    """Folder of all versions."""
    checkpoint_dirs: tuple[str, ...]
    """Directories of the checkpoints that exports are made and deleted with: full ones, and those without tables."""
    model_name: str
    """Of the gauge."""
    shared_embedding: bool = True
    """Exports name the rows of their checkpoint instead of writing them once more."""
    shards: int = 0
    """Servers that have the rows between them; 0: an export is in one piece."""
    is_numbered_by_step: bool = False
    """Versions are global steps, as in a synchronous run; else Unix seconds."""
    skip_zero: bool = False
    """Whether serving drops rows of zeros."""

    @classmethod
    def of(
        cls, params: Params, config: TrainerConfig, saver: Saver, *, model_name: str, ranks: RankPart | None
    ) -> ExportsOfRun:
        """Returns the exports of a run.

        Args:
            params: Parameters of its task.
            config: Config of the exporting process.
            saver: Saver of its checkpoints, with or without tables.
            model_name: Name of the model in the gauge.
            ranks: The ranks of a synchronous run; None: not synchronous.

        Raises:
            ValueError: the parameters contradict each other.
        """
        checkpoints = dirname(saver.model_dir) if saver.dense_only else saver.model_dir
        return cls(
            path=join(config.model_dir or saver.model_dir, str(params.serving.export_dir_base)),
            checkpoint_dirs=(checkpoints, join(checkpoints, DENSE_ONLY)),
            model_name=model_name,
            shared_embedding=bool(params.serving.shared_embedding),
            shards=num_shards(params, config, share_rows=ranks is not None and ranks.shares_rows),
            is_numbered_by_step=ranks is not None,
            skip_zero=config.exporting.skip_zero,
        )


def num_shards(params: Params, config: TrainerConfig, *, share_rows: bool) -> int:
    """Returns the number of shards of an export: as many as there are in training; 0: one piece.

    Args:
        params: Parameters of the task.
        config: Config of the run.
        share_rows: Whether the workers share the rows.

    Raises:
        ValueError: the mode is not an export mode.
    """
    mode = params.serving.export_mode
    if mode is ExportMode.STANDALONE:
        return 0
    if mode is not ExportMode.DISTRIBUTED:
        raise ValueError(
            f"task {params.name}: parameter serving.export_mode must be STANDALONE or DISTRIBUTED for an export, got"
            f" {mode!r}; set serving.export_when_saving=False to skip exports"
        )
    return max(1, config.tables.num_ps, config.num_workers if share_rows else 1)
