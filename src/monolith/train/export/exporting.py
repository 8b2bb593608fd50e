"""Export of the state of a session, see ``docs/formats/export.md``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.export.graph import ModelCall
from monolith.export.writer import ExportConfig, ExportSource, write_export

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableMapping, Sequence

    from monolith.export.graph import ModelGraph
    from monolith.train.session import Session
    from monolith.train.task import Task

__all__ = ["export_session", "first_batch", "looked_at"]


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
    """Returns an example for exports: the first batch of the input for mode ``predict``.

    Raises:
        InvalidArgumentError: the input is empty.
    """
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
