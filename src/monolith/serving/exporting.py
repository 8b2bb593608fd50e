"""`export`: writes a session or a model directory as a model that can be served without its code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith.checkpoint import resolve
from monolith.errors import InvalidArgumentError
from monolith.export import ExportConfig
from monolith.train import Session, Task, Trainer
from monolith.train.export import CheckpointExporter, export_session

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from monolith.train.parameters import Params


def export(
    source: Session | Trainer | str | os.PathLike[str],
    path: str,
    *,
    example: Any = None,
    task: Task | type[Task] | Params | None = None,
    on_rows: Callable[[int], None] | None = None,
    **options: Any,
) -> str:
    """Writes a version of a model below a path; see ``docs/formats/export.md``.

    Args:
        source: A session, between two steps; a trainer; a model directory, whose newest checkpoint is taken; or the
            prefix of a checkpoint. Rows of checkpoints are copied some at a time: they need not fit into memory.
        path: The folder of all versions, local or an fsspec URL.
        example: A batch with all columns that requests will have; None: the first of the task's input for mode
            ``predict``.
        task: Task of the model directory or checkpoint.
        on_rows: Called with the number of rows of a checkpoint written since the last call.
        options: The fields of `ExportConfig`, by name: ``version``, ``shards``, ``dense_only`` and others. With
            ``checkpoint``, that checkpoint is exported, and its rows are referenced instead of copied.

    Returns:
        The folder of the version.

    Raises:
        InvalidArgumentError: the model cannot be exported; the message names the line. Nothing was written.
        NotFoundError: there is no checkpoint.
    """
    settings = ExportConfig(**options)
    if isinstance(source, Session):
        return export_session(source, path, example=example, options=settings)
    if isinstance(source, Trainer):
        return source.export(path, example=example, options=settings)
    if task is None:
        raise InvalidArgumentError(
            f"export of model directory '{source}': give its task, which makes the model: export(..., task=MyTask)"
        )
    checkpoint = resolve(str(source) if settings.checkpoint is None else settings.checkpoint)
    exporter = CheckpointExporter(Trainer(task).task)
    shared = settings.checkpoint is not None
    return exporter.export(checkpoint, path, example=example, shared=shared, options=settings, on_rows=on_rows)
