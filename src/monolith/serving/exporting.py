"""`export`: what a session or a model directory has, as a model that answers without its code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith.errors import InvalidArgumentError
from monolith.export.writer import ExportOptions
from monolith.train import Trainer, TrainerConfig
from monolith.train.exporting import export_session
from monolith.train.session import Session

if TYPE_CHECKING:
    import os

    from monolith.train.params import Params
    from monolith.train.task import Task

__all__ = ["export"]


def export(
    source: Session | Trainer | str | os.PathLike[str],
    path: str,
    *,
    example: Any = None,
    task: Task | type[Task] | Params | None = None,
    **options: Any,
) -> str:
    """Writes a version of a model below a path, see ``docs/formats/export.md``.

    Args:
        source: A session, between two steps; a trainer; or a model directory, whose newest checkpoint is taken.
        path: The folder of all versions, local or an fsspec URL.
        example: A batch with all columns that requests will have; None: the first of the task's input for mode
            ``predict``.
        task: What the model directory is of.
        options: The fields of `ExportOptions`, by name: ``version``, ``shards``, ``dense_only`` and others.

    Returns:
        The folder of the version.

    Raises:
        InvalidArgumentError: the model cannot be exported; names the line. Nothing was written.
        NotFoundError: the model directory has no checkpoint.
    """
    wanted = ExportOptions(**options)
    if isinstance(source, Session):
        return export_session(source, path, example=example, options=wanted)
    if isinstance(source, Trainer):
        return source.export(path, example=example, options=wanted)
    if task is None:
        raise InvalidArgumentError(
            f"export of model directory '{source}': give its task, which makes the model: export(..., task=MyTask)"
        )
    return Trainer(task, TrainerConfig(model_dir=str(source))).export(path, example=example, options=wanted)
