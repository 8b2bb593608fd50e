"""Exports of the state of a session, and of checkpoints, see ``docs/formats/export.md``."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from monolith.checkpoint import RestoreConfig, random_state, read_manifest, set_random_state, snapshots_of
from monolith.checkpoint.restore import Parts, restore_model
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.export import ExportConfig, ExportSource, ModelCall, write_export
from monolith.nn import TableDefaults, use_table_defaults
from monolith.tables.local import LocalStore
from monolith.train.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableMapping, Sequence

    from monolith.checkpoint import TrainState
    from monolith.export import ModelGraph
    from monolith.tables import Pending, Plan, Rows
    from monolith.train.task import Task


def export_session(
    session: Session,
    path: str,
    *,
    example: Any = None,
    options: ExportConfig | None = None,
    snapshots: Mapping[str, Sequence[str]] | None = None,
    graphs: MutableMapping[str, ModelGraph] | None = None,
    on_rows: Callable[[int], None] | None = None,
) -> str:
    """Exports the state of a session between two steps; the session is unchanged.

    Args:
        session: A session in any mode.
        path: The folder of all versions, local or an fsspec URL.
        example: A batch with all columns that requests will have; None: the first of the task's input for mode
            ``predict``.
        options: Options of the export.
        snapshots: Store -> folders of a snapshot that has its rows; None: the session has them.
        graphs: Graphs of the last export, see `ExportSource`.
        on_rows: Called with the number of those rows written since the last call.

    Returns:
        The folder of the version.

    Raises:
        InvalidArgumentError: the model cannot be exported; names the source line. Nothing is written.
    """
    task, state = session.task, session.state
    model = nn.Module() if state.model is None else state.model
    columns = _columns(task, first_batch(task) if example is None else example)

    calls = _ModelCalls(task)
    source = ExportSource(
        name=str(task.p.name),
        step=session.global_step,
        model=ModelCall(
            model=model,
            embeddings=state.embeddings,
            stores=state.stores,
            model_fn=task.model_fn,
            call=calls.predictions,
        ),
        stores=state.stores,
        signatures=task.signatures(),
        snapshots=snapshots,
        graphs=graphs,
        on_rows=on_rows,
        extra_outputs=calls.extra_outputs,
    )
    with looked_at(model):
        return write_export(source, path, columns, ExportConfig() if options is None else options)


class _ModelCalls:
    """Calls a model as an export does, and records its extra outputs."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._names: set[str] = set()

    def predictions(self, batch: Any) -> object:
        """Returns the predictions of a batch."""
        return self._call(batch)[0]

    def extra_outputs(self) -> dict[str, Callable[[Any], object]]:
        """Returns name -> function that computes the extra outputs of that name for a batch."""
        return {name: functools.partial(self._extra, name) for name in self._names}

    def _extra(self, name: str, batch: Any) -> object:
        added = self._call(batch)[1]
        if name not in added:
            raise InvalidArgumentError(
                f"signature {name!r}: model_fn adds these outputs for some requests alone; it must for all columns of"
                " the example"
            )
        return added[name]

    def _call(self, batch: Any) -> tuple[object, dict[str, Any]]:
        added: dict[str, Any] = {}
        self._task.ctx.extra_outputs = added
        try:
            predictions = self._task.model_fn(batch, "predict").predictions
        finally:
            self._task.ctx.extra_outputs = None
        self._names |= added.keys()
        return predictions, added


def _columns(task: Task, example: Any) -> Mapping[str, Any]:
    if not isinstance(example, Mapping) or not example:
        raise InvalidArgumentError(
            f"export of {task.p.name}: example must be a batch with columns by name, got {type(example).__name__}"
        )
    return example


def first_batch(task: Task) -> Any:
    """Returns an example for exports: the first batch of the input for mode ``predict``."""
    try:
        return next(iter(task.input_fn("predict")))
    except (StopIteration, NotImplementedError, OSError, FailedPreconditionError) as error:
        raise InvalidArgumentError(
            f"export of {task.p.name}: give an example; the input for mode 'predict' has none: {error}"
        ) from error


@contextmanager
def looked_at(model: nn.Module) -> Iterator[None]:
    """Puts the model into evaluation mode and on the CPU inside, and restores it afterwards."""
    modes = {module: module.training for module in model.modules()}
    devices = {parameter.device for parameter in model.parameters()}
    away = next((device for device in devices if device.type != "cpu"), None)
    model.eval()
    if away is not None:
        model.to("cpu")
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        if away is not None:
            model.to(away)
        for module, mode in modes.items():
            module.training = mode


_SIZE_OF_ROWS = 0.1
"""About that of rows that were trained for a while."""


class CheckpointExporter:
    """Exports checkpoints of a task: rows are copied or referenced as files. Not thread-safe.

    A separate model loads the dense weights. Training is not affected, and no process needs memory for all rows.

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
