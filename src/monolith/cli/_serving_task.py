"""``monolith serve --task``: a model with its code, which may need what is installed for training."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monolith.serving.task_model import TaskModel

__all__ = ["open_task"]


def open_task(task: str, model_dir: str | None, *, follow: str | None) -> TaskModel:
    """Returns the model of a task.

    Raises:
        ValueError: an option is missing, or has no effect.
    """
    if model_dir is None:
        raise ValueError("--model_dir: must name the folder of the checkpoints of --task, got none")
    if follow is not None:
        raise ValueError(
            "--follow: a log has rows for serving, and --task has those of training; newer checkpoints of --model_dir"
            " are loaded instead. Export the model to follow a log"
        )
    # Serving of exports needs no training code.
    importlib.import_module("monolith.cli._run_options").find_tasks_here()
    found = importlib.import_module("monolith.train").find_task(task)
    made: TaskModel = importlib.import_module("monolith.serving.task_model").TaskModel(found, model_dir)
    return made
