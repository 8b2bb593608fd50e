"""`JaxTask`: a task whose model JAX runs; sessions, hooks and checkpoints see a task like any other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from monolith.data import Batch, Dataset, StageReading, join_rows
from monolith.errors import InvalidArgumentError
from monolith.nn.embeddings import current_batch_context
from monolith.tpu.compiled_model import CompiledModel
from monolith.tpu.stopping_signals import EndOfStreamHook, SignalledBatch, with_stopping_signals
from monolith.train import Spec, TaskWrapper

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn

    from monolith.data import Reading
    from monolith.hook import Hook
    from monolith.tpu.devices import Devices
    from monolith.tpu.torchax_shim import Backend
    from monolith.train import Mode, Task


class JaxTask(TaskWrapper):
    """A task whose `model_fn` is compiled by JAX, on batches of all replicas together.

    The optimizers of the task update the weights on the host.

    Args:
        task: The task to run. Its context and modules are shared, its parameters copied.
        backend: JAX.
        devices: Devices to compute on.
        num_replicas: Number of batches of the task that are trained in one step.
        stopping_signals: Whether training ends on the signal of its batches instead of on the end of the input.
    """

    def __init__(
        self, task: Task, backend: Backend, devices: Devices, *, num_replicas: int = 1, stopping_signals: bool = False
    ) -> None:
        params = task.p.copy()
        if params.accelerator is not None:
            params.accelerator = None  # this task implements it; sessions refuse parameters without effect
        super().__init__(task, params)
        self._num_replicas = num_replicas
        self._stopping_signals = stopping_signals
        self._has_stopped = False
        self.compiled = CompiledModel(task, backend, devices)
        """Runs the compiled model."""

    def input_fn(self, mode: Mode) -> Dataset[Any] | Iterable[Any]:
        """Returns the batches of the task for all replicas, in training with their signals."""
        self._task.ctx = self.ctx  # sessions make new ones
        batches = global_batches(self._task.input_fn(mode), self._num_replicas)
        return with_stopping_signals(batches) if self._stopping_signals and mode == "train" else batches

    def model_fn(self, features: Any, mode: Mode) -> Spec:
        """Runs the compiled model on a batch; returns an empty result for one with the stopping signal."""
        self._has_stopped = isinstance(features, SignalledBatch) and features.is_stop
        if isinstance(features, SignalledBatch):
            batch_context, features = current_batch_context(), {} if features.is_stop else features.features
            if batch_context is not None:
                batch_context.features = features  # what was read ahead is for what the model sees
        return Spec(train_op=lambda: None) if self._has_stopped else self.compiled(features, mode)

    def make_model(self) -> nn.Module:
        """Returns the model of the task, which is compiled with its first batch."""
        self._task.ctx = self.ctx
        model = self._task.make_model()
        self.compiled.use(model)
        return model

    def training_hooks(self) -> Sequence[Hook]:
        """Returns the hook that stops on the signal, then those of the task."""
        signals = [EndOfStreamHook(lambda: self._has_stopped)] if self._stopping_signals else []
        return (*signals, *self._task.training_hooks())


def global_batches(source: Dataset[Any] | Iterable[Any], count: int) -> Dataset[Any] | Iterable[Any]:
    """Returns the rows of `count` batches at a time; the last one may have fewer."""
    if count == 1:
        return source
    if not isinstance(source, Dataset):
        raise InvalidArgumentError(
            f"tpu: input_fn must return a Dataset, whose batches can be joined for {count} replicas, got"
            f" {type(source).__name__}; monolith.data.InMemoryDataset makes one of a list"
        )
    return GlobalBatches(source, count)


class GlobalBatches(Dataset[Batch]):
    """Concatenates the rows of `count` batches of a dataset at a time.

    Positions are those of the dataset, so that a run with another number of replicas, or without replicas, can resume
    from them.
    """

    def __init__(self, source: Dataset[Any], count: int) -> None:
        self._source = source
        self._count = count

    def __repr__(self) -> str:
        return f"GlobalBatches({self._source!r}, {self._count})"

    def read(self, position: bytes | None = None) -> Reading[Batch]:
        """Reads from a position of the source."""
        return _GlobalReading(self._source.read(position), self._count)


class _GlobalReading(StageReading[Any, Batch]):
    def __init__(self, source: Reading[Any], count: int) -> None:
        super().__init__(source)
        self._count = count

    def __next__(self) -> Batch:
        parts: list[Batch] = []
        for _ in range(self._count):
            try:
                parts.append(_as_batch(next(self._source)))
            except StopIteration:
                break
        if not parts:
            raise StopIteration
        joined: Batch = join_rows(parts)
        return joined


def _as_batch(element: Any) -> Batch:
    if isinstance(element, Batch):
        return element
    if isinstance(element, Mapping):
        return Batch(element)
    raise InvalidArgumentError(f"tpu: batches of columns by name expected, got {type(element).__name__}")
