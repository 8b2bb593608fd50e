"""Exports of checkpoints: a separate model loads the dense weights, and rows are copied or referenced as files.

Training is not affected, and no process needs memory for all rows.
"""

from __future__ import annotations

import copy
import dataclasses
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from monolith.checkpoint import RestoreConfig
from monolith.checkpoint.catalog import read_manifest
from monolith.checkpoint.random_state import random_state, set_random_state
from monolith.checkpoint.restore.adapting import Parts
from monolith.checkpoint.restore.restoring import restore_model
from monolith.checkpoint.snapshots import snapshots_of
from monolith.nn.table_defaults import TableDefaults, use_table_defaults
from monolith.tables.local.store import LocalStore
from monolith.train.export.exporting import export_session, first_batch
from monolith.train.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monolith.checkpoint import TrainState
    from monolith.export.graph import ModelGraph
    from monolith.export.writer import ExportConfig
    from monolith.tables.batch import Pending, Plan, Rows
    from monolith.train.task import Task

__all__ = ["CheckpointExporter", "copied_task"]

_SIZE_OF_ROWS = 0.1
"""About that of rows that were trained for a while."""


class CheckpointExporter:
    """Exports checkpoints of a task. Not thread-safe.

    Args:
        task: The task of the checkpoints. It may be training: models are built from a copy.
        restoring: What may differ between a checkpoint and the model.
    """

    def __init__(self, task: Task, restoring: RestoreConfig | None = None) -> None:
        self._task = task
        self._restoring = RestoreConfig() if restoring is None else restoring
        self._example: Any = None
        self._graphs: dict[str, ModelGraph] = {}
        """Graphs of the last checkpoint; most checkpoints differ only in their weights."""

    def export(
        self,
        checkpoint: str,
        path: str,
        *,
        example: Any = None,
        shared: bool = False,
        options: ExportConfig,
        on_rows: Callable[[int], None] | None = None,
    ) -> str:
        """Writes a version of the model of a checkpoint, and returns its folder.

        Args:
            checkpoint: Full prefix of the checkpoint. One without tables makes an export without rows.
            path: The folder of all versions, local or an fsspec URL.
            example: See `Trainer.export`; None: that of the task, which is made once.
            shared: Reference the rows of the checkpoint, which then must be kept, instead of copying them.
            options: Options of the export.
            on_rows: Called with the number of rows written since the last call.

        Raises:
            InvalidArgumentError: the model cannot be exported; names the source line. Nothing is written.
            NotFoundError, DataLossError: a file of the checkpoint is missing or damaged.
        """
        manifest = read_manifest(checkpoint)
        is_dense = manifest.kind == "dense_only"
        options = dataclasses.replace(
            options,
            dense_only=is_dense or options.dense_only,
            checkpoint=checkpoint if shared and not is_dense else None,
        )

        def restore(state: TrainState) -> None:
            restore_model(checkpoint, state, self._restoring, Parts(rows={}))
            state.global_step = manifest.step

        with _aside(), Session(copied_task(self._task), mode="predict", restore=restore) as session:
            if example is None:
                self._example = example = first_batch(session.task) if self._example is None else self._example
            snapshots = None
            if not options.dense_only:
                snapshots = snapshots_of(checkpoint, manifest, session.state.stores, is_needed=lambda _: True)
            return export_session(
                session,
                path,
                example=example,
                options=options,
                snapshots=snapshots,
                graphs=self._graphs,
                on_rows=on_rows,
            )


class _DrawnRows(LocalStore):
    """Tables whose rows are stored elsewhere. Reads return random rows, so that an example distinguishes graphs."""

    def read(self, plan: Plan, *, step: int) -> Pending[Rows]:
        """Numbers like those of trained rows."""
        pending = super().read(plan, step=step)
        pending.result().values.normal_(std=_SIZE_OF_ROWS)
        return pending


@contextmanager
def _aside() -> Iterator[None]:
    """Preserves the state of the random number generators."""
    generators = random_state()
    try:
        with use_table_defaults(TableDefaults(store=_DrawnRows)):
            torch.manual_seed(0)  # an export of the same checkpoint is the same
            yield
    finally:
        set_random_state(generators)


def copied_task(task: Task) -> Task:
    """Returns a copy of a task that builds its own modules; `build` can be called again, as after a failure."""
    other = copy.copy(task)
    for name, value in vars(task).items():
        if isinstance(value, dict | list | set):
            setattr(other, name, copy.copy(value))
    return other
