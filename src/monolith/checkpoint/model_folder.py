"""A model in a folder of its own, saved and loaded by one call each, outside of any run.

It is a checkpoint like any other: one consistent cut, files first, the manifest last (docs/formats/checkpoint.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.optim import Optimizer

from monolith.checkpoint.catalog import Catalog, full_local_path, prefix_of
from monolith.checkpoint.manifest import SUFFIX
from monolith.checkpoint.options import RestoreConfig, SaverConfig
from monolith.checkpoint.restore.restoring import restore_model, restore_without_dense
from monolith.checkpoint.saver import Saver
from monolith.checkpoint.state_files import checkpoint_exists
from monolith.checkpoint.train_state import TrainState
from monolith.errors import InvalidArgumentError, NotFoundError
from monolith.files import StoragePath, local_path, open_storage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from monolith.checkpoint.catalog import SavedCheckpoint

_BASENAME = "model"
_PREFIX = prefix_of(_BASENAME, 0)
_ONLY_OPTIMIZER = "optimizer"


def save(
    model: nn.Module, path: StoragePath, *, optimizer: Optimizer | Mapping[str, Optimizer] | None = None
) -> SavedCheckpoint:
    """Saves a model of any size with all its rows; a model saved there before stays intact until it is replaced.

    Args:
        model: Any module, with any number of `Embeddings` in it.
        path: A folder of its own, on this machine or any fsspec URL; created if it is missing.
        optimizer: Of the dense weights: one, or several by name. Optimizer state of rows is saved with the rows.

    Returns:
        The checkpoint.

    Raises:
        InvalidArgumentError: the path is a file, or the folder holds the checkpoints of a run.
        OpError: the save failed; the folder holds what it held before.

    >>> import tempfile, torch, monolith as ml
    >>> model = torch.nn.Sequential(ml.Embeddings({"user": ml.Slot(dim=4)}))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     saved = ml.save(model, f"{folder}/ranker")
    ...     ml.load(model, f"{folder}/ranker") == saved
    True
    """
    _require_folder(path)
    foreign = [name for name in open_storage(path).names() if name.endswith(SUFFIX) and name != f"{_PREFIX}{SUFFIX}"]
    if foreign:
        raise InvalidArgumentError(
            f"save: '{path}' has the checkpoints of a run, such as {foreign[0]!r}; give the model a folder of its own"
        )
    with Saver(path, basename=_BASENAME) as saver:
        return saver.save(_state_of(model, optimizer), background=False)


def load(
    model: nn.Module,
    path: StoragePath,
    *,
    optimizer: Optimizer | Mapping[str, Optimizer] | None = None,
    options: RestoreConfig | None = None,
) -> SavedCheckpoint:
    """Loads a saved model into one that was built alike: its weights, its rows, and its optimizers if given.

    Random generators stay as they are.

    Args:
        model: Overwritten; an error leaves it unchanged.
        path: Path given to `save`; or the model directory of a run, whose newest checkpoint is loaded, or the
            prefix of one checkpoint.
        optimizer: As given to `save`; None: none is loaded.
        options: What may differ between the two models.

    Returns:
        The checkpoint loaded.

    Raises:
        NotFoundError: there is no saved model.
        DataLossError: it is damaged.
        FailedPreconditionError: the model is made of other parts; names them.
    """
    options = RestoreConfig() if options is None else options
    state, prefix = _state_of(model, optimizer), _find(path)
    if options.clear_nn:
        return restore_without_dense(prefix, state, options)
    return restore_model(prefix, state, options)


def _state_of(model: nn.Module, optimizer: Optimizer | Mapping[str, Optimizer] | None) -> TrainState:
    if optimizer is None:
        return TrainState(model=model)
    return TrainState(
        model=model, optimizers={_ONLY_OPTIMIZER: optimizer} if isinstance(optimizer, Optimizer) else optimizer
    )


def _require_folder(path: StoragePath) -> None:
    local = local_path(path)
    if local is not None and local.exists() and not local.is_dir():
        raise InvalidArgumentError(
            f"'{path}': a model is saved as a folder, and this is a file; name a folder, or load a file of torch.save"
            " by model.load_state_dict(torch.load(path, weights_only=True))"
        )


def _find(path: StoragePath) -> str:
    """Returns the full prefix of the checkpoint at a path."""
    full = full_local_path(str(path)).removesuffix(SUFFIX).rstrip("/")
    if checkpoint_exists(full):
        return full
    _require_folder(path)
    for basename in (_BASENAME, SaverConfig().basename):
        prefixes = Catalog(open_storage(path), basename).newest_first()
        if prefixes:
            return prefixes[0]
    raise NotFoundError(f"load: '{path}' has no saved model; save one by ml.save(model, path)")
