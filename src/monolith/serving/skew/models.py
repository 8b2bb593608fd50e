"""Finds the model that replays a logged request: the export of its version, or the task at the step of that export."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from monolith.checkpoint import get_checkpoint_state
from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from monolith.export import ExportFolder, ExportManifest, OpenedExport, Signature, find_export, versions_in
from monolith.files import basename, join
from monolith.serving.predictor import Predictor
from monolith.train import Task, Trainer
from monolith.train.config import RestoringConfig, TrainerConfig

if TYPE_CHECKING:
    from torch import Tensor

    from monolith.data import Batch


_Predict: TypeAlias = "Callable[[Batch, str], Mapping[str, Tensor]]"


class ReplayModels:
    """Models by version, of which the last one is kept in memory. Not thread-safe. Must be closed.

    Args:
        export: An export, or the folder of its versions, with the signatures and the step of each version.
        model_dir: Directory of the checkpoints of the run; None: the exports predict.
        task: Creates the task whose `model_fn` predicts from the checkpoint of an export's step; given with
            `model_dir`.

    Raises:
        NotFoundError: there is no export, or there are no checkpoints.
    """

    def __init__(self, export: str, *, model_dir: str | None = None, task: Callable[[], Task] | None = None) -> None:
        if (model_dir is None) != (task is None):
            raise InvalidArgumentError("ReplayModels: model_dir and task are given together, or neither is")
        folder = find_export(export)
        is_one = folder.path == ExportFolder(export).path
        numbers = [folder.manifest().version] if is_one else versions_in(export)
        self._places = {number: folder.path if is_one else join(export, str(number)) for number in numbers}
        self._task, self._model_dir = task, model_dir
        self._checkpoints = {} if model_dir is None else _checkpoints_in(model_dir)
        """Step -> base name of its checkpoint."""
        self._manifests: dict[int, ExportManifest] = {}
        self._current: tuple[int, _Predict, Callable[[], None]] | None = None
        """Version in memory, its function, and what frees it."""

    def why_not(self, version: int, signature: str) -> str | None:
        """Returns why a version cannot be replayed; None if it can."""
        place = self._places.get(version)
        if place is None:
            return f"there is no export of version {version}"
        manifest = self._manifest(version)
        if signature not in manifest.signatures:
            return f"the export of version {version} has no signature {signature!r}"
        if self._task is not None and manifest.step not in self._checkpoints:
            return f"there is no checkpoint of step {manifest.step}, at which version {version} was exported"
        return None

    def signature(self, version: int, name: str) -> Signature:
        """Returns a signature of a version."""
        return self._manifest(version).signatures[name]

    def step(self, version: int) -> int:
        """Returns the step of the run at which a version was exported."""
        return self._manifest(version).step

    def predict(self, version: int, batch: Batch, signature: str) -> Mapping[str, Tensor]:
        """Returns the outputs of a version for a batch, by name."""
        if self._current is None or self._current[0] != version:
            self.close()
            self._current = version, *self._load(version)
        return self._current[1](batch, signature)

    def close(self) -> None:
        """Frees the model in memory."""
        if self._current is not None:
            self._current[2]()
            self._current = None

    def _manifest(self, version: int) -> ExportManifest:
        if version not in self._manifests:
            self._manifests[version] = OpenedExport(ExportFolder(self._places[version])).manifest
        return self._manifests[version]

    def _load(self, version: int) -> tuple[_Predict, Callable[[], None]]:
        if self._task is None or self._model_dir is None:
            predictor = Predictor(self._places[version])
            return lambda batch, signature: predictor.predict(batch, signature).outputs, predictor.close
        step = self._manifest(version).step
        checkpoint = None if step == max(self._checkpoints) else self._checkpoints[step]
        config = TrainerConfig(model_dir=self._model_dir, restoring=RestoringConfig(checkpoint=checkpoint))
        trainer = Trainer(self._task(), config)
        return lambda batch, _: _predicted(trainer, batch, step), trainer.release_state  # a task has one `model_fn`


def _predicted(trainer: Trainer, batch: Batch, step: int) -> Mapping[str, Tensor]:
    """Predicts with the checkpoint of a step."""
    predicted: Any = trainer.predict(batch)
    restored = None if trainer.state is None else trainer.state.global_step
    if restored != step:  # an active run removes checkpoints
        raise FailedPreconditionError(
            f"the checkpoint of step {step} was deleted, the remaining one is of step {restored}; try again"
        )
    return predicted if isinstance(predicted, Mapping) else {"predictions": predicted}


def _checkpoints_in(model_dir: str) -> dict[int, str]:
    state = get_checkpoint_state(model_dir)
    names = [] if state is None else [basename(path) for path in state.all_model_checkpoint_paths]
    if not names:
        raise NotFoundError(f"'{model_dir}' has no checkpoint")
    return {int(name.rpartition("-")[2]): name for name in names}
