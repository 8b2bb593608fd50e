"""Puts one checkpoint into a training state. Everything is read and checked before anything is changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from monolith import _core
from monolith.checkpoint._adapting import EXTRA_STATE, Keeps, adapt, keep_nothing
from monolith.checkpoint._catalog import SavedCheckpoint, read_manifest
from monolith.checkpoint._cut import local_store
from monolith.checkpoint._folder import open_folder
from monolith.checkpoint._optimizer_state import numbered_state
from monolith.checkpoint._random_state import set_random_state
from monolith.checkpoint._tensor_file import FileSum, read_tensors
from monolith.checkpoint._value_tree import decode
from monolith.checkpoint._writing import stamps
from monolith.checkpoint.state_files import split_path
from monolith.checkpoint.train_state import WHOLE_MODEL
from monolith.errors import DataLossError, FailedPreconditionError
from monolith.tables.snapshot import restore, verify
from monolith.tables.snapshot.manifest import MANIFEST_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.checkpoint._folder import Folder
    from monolith.checkpoint.manifest import Manifest, TablesEntry
    from monolith.checkpoint.restore_options import RestoreOptions
    from monolith.checkpoint.train_state import TrainState
    from monolith.tables.local_store import LocalStore


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCheckpoint:
    """A checkpoint whose small and dense parts are in memory, checked; its tables are still in their files."""

    path: str
    folder: Folder
    manifest: Manifest
    state: dict[str, Any]
    """The trees with their tensors."""

    @property
    def saved(self) -> SavedCheckpoint:
        """What it is."""
        return SavedCheckpoint(path=self.path, step=self.manifest.step, generation=self.manifest.generation)


def load_checkpoint(path: str) -> LoadedCheckpoint:
    """Reads everything but the tables.

    Raises:
        NotFoundError: a file is missing.
        DataLossError: a file is not what was written.
    """
    manifest = read_manifest(path)
    folder = open_folder(split_path(path)[0])
    tensors: dict[str, Tensor] = {}
    if manifest.tensors is not None:
        entry = manifest.tensors
        tensors = read_tensors(folder, entry.name, FileSum(bytes=entry.bytes, crc32c=entry.crc32c))
    return LoadedCheckpoint(path=path, folder=folder, manifest=manifest, state=decode(manifest.state, tensors))


def restore_all(
    checkpoint: LoadedCheckpoint, state: TrainState, options: RestoreOptions, *, keeps: Keeps = keep_nothing
) -> None:
    """Puts everything back: tables, weights, optimizers, schedules, extra, generators, step and positions.

    Where parts keep what they have, step, positions and generators stay too: the run goes on, it is not set back.

    Raises:
        FailedPreconditionError: the state is made of other parts than the one that was saved; nothing was changed.
        NotFoundError, DataLossError: a file of a table is missing or damaged; nothing was changed.
    """
    saved = adapt(checkpoint.state, state, options, keeps)
    optimizers = require_fit(saved, state)
    kept = restore_tables(checkpoint, state, keeps=keeps)
    if state.model is not None:
        state.model.load_state_dict(saved["model"])
    for name, values in optimizers.items():
        state.optimizers[name].load_state_dict(values)
    for part in ("schedules", "extra"):
        for name, value in getattr(state, part).items():
            if name in saved[part] and not kept:
                value.load_state_dict(saved[part][name])
    if kept:
        return
    set_random_state(saved["random"])
    state.global_step = checkpoint.manifest.step
    state.positions = dict(checkpoint.manifest.positions)


def require_fit(saved: Mapping[str, Any], state: TrainState) -> dict[str, dict[str, Any]]:
    """Checks names and shapes; returns what each optimizer will load."""
    if state.model is not None:
        _require_weights(saved["model"] or {}, state.model.state_dict())
    missing = [name for name in state.optimizers if name not in saved["optimizers"]]
    if missing:
        raise FailedPreconditionError(
            f"restore: the checkpoint has optimizers {sorted(saved['optimizers'])}, not {missing}; name them as they"
            " were, or build the state without them"
        )
    return {
        name: numbered_state(saved["optimizers"][name], optimizer, state.model)
        for name, optimizer in state.optimizers.items()
    }


def _require_weights(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    missing, unexpected = sorted(own.keys() - saved.keys()), sorted(saved.keys() - own.keys())
    if missing or unexpected:
        raise FailedPreconditionError(
            f"restore: the model's weights are not those of the checkpoint: it does not have {missing}, the model does"
            f" not have {unexpected}; build the model as it was, or give an alias map of the new names"
        )
    for name, value in own.items():
        if isinstance(value, Tensor) and (not isinstance(saved[name], Tensor) or saved[name].shape != value.shape):
            got = tuple(saved[name].shape) if isinstance(saved[name], Tensor) else saved[name]
            raise FailedPreconditionError(
                f"restore: weight {name!r} has shape {tuple(value.shape)}, in the checkpoint {got}; build the model as"
                " it was, or restore with reshape=True where only the shape differs"
            )


def restore_without_dense(checkpoint: LoadedCheckpoint, state: TrainState, *, keep_step: bool) -> None:
    """Puts the tables and the positions back; the dense part, and the step unless asked for, start anew."""
    restore_tables(checkpoint, state)
    saved = checkpoint.state["model"] or {}
    for name, module in state.embeddings.items():
        key = EXTRA_STATE if name == WHOLE_MODEL else f"{name}.{EXTRA_STATE}"
        if key in saved:
            module.set_extra_state(saved[key])
    state.global_step = checkpoint.manifest.step if keep_step else 0
    state.positions = dict(checkpoint.manifest.positions)


def restore_tables(checkpoint: LoadedCheckpoint, state: TrainState, *, keeps: Keeps = keep_nothing) -> bool:
    """Replaces the rows of every store by those of the checkpoint; a dense-only one leaves them as they are.

    Returns:
        Whether a part of the run keeps what it has.
    """
    every = {name: local_store(name, store) for name, store in state.stores.items()}
    stores = {name: store for name, store in every.items() if not keeps(name)}
    own = {} if state.model is None else state.model.state_dict()
    kept = len(stores) < len(every) or any(keeps(name) for name in own)
    if checkpoint.manifest.kind == "dense_only" or not stores:
        return kept
    entries = _matching(checkpoint.manifest.tables, every)
    for name in stores:
        _require_same_snapshot(checkpoint.folder, entries[name])
    if len(stores) > 1:  # a damaged second store must not leave the first one restored
        for name, store in stores.items():
            verify(store.native.core, checkpoint.folder.place(entries[name].folder))
    for name, store in stores.items():
        report = restore(store.native.core, checkpoint.folder.place(entries[name].folder))
        store.resume(seq=entries[name].seq, applied=stamps(report.applied), generation=checkpoint.manifest.generation)
    for name, module in state.embeddings.items():
        if not keeps(name):
            module.discard()
    return kept


def _matching(tables: Mapping[str, TablesEntry], stores: Mapping[str, LocalStore]) -> dict[str, TablesEntry]:
    if set(tables) == set(stores):
        return dict(tables)
    if len(tables) == len(stores) == 1:  # the module was renamed
        return dict(zip(stores, tables.values(), strict=True))
    raise FailedPreconditionError(
        f"restore: the checkpoint has the tables of {sorted(tables)}, the model those of {sorted(stores)}; name the"
        " Embeddings modules as they were"
    )


def _require_same_snapshot(folder: Folder, entry: TablesEntry) -> None:
    name = f"{entry.folder}/{MANIFEST_NAME}"
    if _core.crc32c(folder.read(name)) != entry.manifest_crc32c:
        raise DataLossError(f"file '{folder.place(name)}': not the one that this checkpoint was committed with")
