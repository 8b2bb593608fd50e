"""Wrappers of tasks: one detects the end of its data, and one writes features instead of training."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import fsspec
import torch
from torch import Tensor

from monolith.data.protos.example_pb2 import ExampleBatch, Feature, FeatureListType, FidList, FloatList
from monolith.data.records import Framing, RecordWriter
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.files import join
from monolith.hook import Hook
from monolith.hooks import EofHook, flag_last, split_flag
from monolith.nn.embeddings import current_batch_context
from monolith.tensors import Ragged
from monolith.train.task import Spec, Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn, optim

    from monolith.data import Dataset
    from monolith.hook import HookedSession
    from monolith.train.parameters.params import Params
    from monolith.train.task import Mode


class TaskWrapper(Task):
    """Base of a task around another one, to which it delegates everything but the input and the step.

    Args:
        task: The task to run. Its context and modules are shared.
        params: Parameters of this task; None: those of the task.
    """

    def __init__(self, task: Task, params: Params | None = None) -> None:
        super().__init__(task.p if params is None else params)
        self._task = task
        self.ctx = task.ctx

    @property
    def task(self) -> Task:
        """Returns the wrapped task."""
        return self._task

    def build(self) -> nn.Module | None:
        """Delegates to the task."""
        return self._task.build()

    def make_model(self) -> nn.Module:
        """Delegates to the task."""
        return self._task.make_model()

    def optimizers(self, model: nn.Module) -> optim.Optimizer | Mapping[str, optim.Optimizer] | None:
        """Delegates to the task."""
        return self._task.optimizers(model)

    def schedules(self, optimizers: Mapping[str, optim.Optimizer]) -> Mapping[str, Any]:
        """Delegates to the task."""
        return self._task.schedules(optimizers)

    def training_chief_hooks(self) -> Sequence[Hook]:
        """Delegates to the task."""
        return self._task.training_chief_hooks()

    def signatures(self) -> Mapping[str, Sequence[str]]:
        """Delegates to the task."""
        return self._task.signatures()


class EofAwareTask(TaskWrapper):
    """A task whose batches flag whether they are the last one, and whose ranks stop together.

    The flag travels with the features, as one more key ``__EofAwareTask_eof`` of a mapping; features that are not a
    mapping travel as ``"1"``, the flag as ``"2"``. The wrapped task sees its features as they were.

    Args:
        task: The task to run. Its `params`, context and modules are shared.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._last = False

    def input_fn(self, mode: Mode) -> Dataset[Any] | Iterable[Any]:
        """Returns the batches of the task, one read ahead, with their flags."""
        return flag_last(self._task.input_fn(mode))

    def model_fn(self, features: Any, mode: Mode) -> Spec:
        """Calls the task with its own features, and remembers the flag."""
        features, self._last = split_flag(features)
        batch_context = current_batch_context()
        if batch_context is not None:
            batch_context.features = features  # what was read ahead for this batch is for what the task sees
        return self._task.model_fn(features, mode)

    def training_hooks(self) -> Sequence[Hook]:
        """Returns the hook that stops all ranks, then those of the task."""
        return (EofHook(lambda: self._last), *self._task.training_hooks())


BATCHES_PER_FILE = 100
FOLDER = "features"
_UNSIGNED = 1 << 64


class FeatureFiles:
    """Collects batches, and writes each hundred of them atomically to a file of their own. Not thread-safe.

    Files are ``<model_dir>/features/chief_<uuid>.pb``, or ``worker<i>_<uuid>.pb``; each record has an empty sort id.
    """

    def __init__(self, model_dir: str, index: int) -> None:
        self._folder = join(model_dir, FOLDER)
        self._name = "chief" if index == 0 else f"worker{index}"
        self._batches: list[bytes] = []
        self.paths: list[str] = []
        """Files that were written."""

    def add(self, features: Any) -> None:
        """Adds a batch; a full file is written."""
        self._batches.append(example_batch_of_features(features).SerializeToString())
        if len(self._batches) == BATCHES_PER_FILE:
            self.write()

    def write(self) -> None:
        """Writes the batches since the last file, also if there are none."""
        files, folder = fsspec.core.url_to_fs(self._folder)
        files.makedirs(folder, exist_ok=True)
        path = join(self._folder, f"{self._name}_{uuid.uuid4().hex}.pb")
        with RecordWriter(path, Framing.SORT_ID) as writer:
            for batch in self._batches:
                writer.write(batch)
        self._batches.clear()
        self.paths.append(path)


class FeatureEngineeringTask(Task):
    """Writes the input of a task to files; the task's model is not built."""

    is_saved = False

    def __init__(self, task: Task, files: FeatureFiles) -> None:
        super().__init__(task.p)
        self._task = task
        self.files = files
        self.ctx = task.ctx

    def input_fn(self, mode: Mode) -> Dataset[Any] | Iterable[Any]:
        """Delegates to the task."""
        return self._task.input_fn(mode)

    def model_fn(self, features: Any, mode: Mode) -> Spec:
        """Keeps the batch."""
        if mode != "train":
            raise FailedPreconditionError(
                f"{type(self._task).__name__}: this run only writes features (only_feature_engineering), and has no"
                f" model to {mode} with"
            )
        self.files.add(features)
        return Spec(torch.tensor(0.0))

    def training_hooks(self) -> Sequence[Hook]:
        """Returns the hook that writes the rest."""
        return [_WriteRest(self.files)]


class _WriteRest(Hook):
    """Writes the last file."""

    def __init__(self, files: FeatureFiles) -> None:
        self._files = files

    def end(self, session: HookedSession) -> None:  # noqa: ARG002 - a hook's signature
        """Writes the last file."""
        self._files.write()


def example_batch_of_features(features: Any) -> ExampleBatch:
    """Returns the columns of a batch: floats as floats, integers as ids, strings as bytes."""
    if not isinstance(features, Mapping):
        raise InvalidArgumentError(
            f"features: columns by name expected, got {type(features).__name__}; only such batches can be written"
        )
    columns = {str(name): _entries(str(name), values) for name, values in features.items()}
    lengths = {name: len(entries) for name, entries in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidArgumentError(f"features: columns of one length expected, got {lengths}")
    batch = ExampleBatch(batch_size=next(iter(lengths.values()), 0))
    for name, entries in columns.items():
        batch.named_feature_list.add(name=name, type=FeatureListType.INDIVIDUAL, feature=entries)
    return batch


def _entries(name: str, values: Any) -> list[Feature]:
    """Returns one feature for each row of a column."""
    if isinstance(values, Ragged) and isinstance(values.values, Tensor):
        flat, is_float = values.values.tolist(), values.values.is_floating_point()
        splits = itertools.pairwise(values.row_splits.tolist())
        return [_feature(flat[begin:end], is_float=is_float) for begin, end in splits]
    if isinstance(values, Tensor) and values.dim() > 0:
        rows = values.reshape(len(values), -1).tolist()
        return [_feature(row, is_float=values.is_floating_point()) for row in rows]
    if isinstance(values, list) and all(isinstance(value, bytes) for value in values):
        features = [Feature() for _ in values]
        for feature, value in zip(features, values, strict=True):
            feature.bytes_list.value.append(value)
        return features
    raise InvalidArgumentError(
        f"features: column {name!r} must be a tensor with a row for each example, a Ragged of one level or a list of"
        f" bytes, got {type(values).__name__}"
    )


def _feature(row: Sequence[Any], *, is_float: bool) -> Feature:
    if is_float:
        return Feature(float_list=FloatList(value=row))
    return Feature(fid_v2_list=FidList(value=[int(fid) % _UNSIGNED for fid in row]))
