"""Restores one checkpoint into a training state. Everything is read and checked before anything is changed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from torch import Tensor

from monolith.checkpoint.catalog import SavedCheckpoint, read_manifest
from monolith.checkpoint.remote_dense import bring_here, require_level, scatter_own, scatter_saved
from monolith.checkpoint.restore.adapting import ALL_PARTS, Keeps, Parts, adapt, keep_nothing
from monolith.checkpoint.restore.store_restore import StoreRestore
from monolith.checkpoint.snapshots import snapshots_of
from monolith.checkpoint.state_dicts import load_model_state, model_state, numbered_state, set_random_state
from monolith.checkpoint.state_files import split_path
from monolith.checkpoint.tensor_file import tensors_of
from monolith.checkpoint.train_state import RestoredFrom, extra_state_of
from monolith.checkpoint.value_tree import decode
from monolith.closing import Closing
from monolith.errors import FailedPreconditionError
from monolith.files import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monolith.checkpoint.options import RestoreConfig
    from monolith.checkpoint.restore.store_restore import RestoredRows
    from monolith.checkpoint.train_state import TrainState
    from monolith.tables import Store

T = TypeVar("T")

_SHOWN_CHANGES = 8
"""Weights that a message lists by name."""


class LoadedCheckpoint(Closing):
    """A checkpoint that was read and checked: its dense part in memory, its tables ready to be loaded.

    The tables are checked by this thread while another one reads the tensors. A context manager.

    Args:
        path: Its full prefix.
        stores: Those whose tables will be replaced.

    Raises:
        NotFoundError: a file is missing.
        DataLossError: a file is damaged.
        FailedPreconditionError: a store cannot load its tables.
    """

    def __init__(self, path: str, stores: Mapping[str, Store], parts: Parts = ALL_PARTS) -> None:
        self.path = path
        self.manifest = read_manifest(path)
        self._prepared: list[StoreRestore] = []
        rows: Mapping[str, RestoredRows] = stores if parts.rows is None else parts.rows
        with ExitStack() as undone, ThreadPoolExecutor(1, "monolith-checkpoint-read") as beside:
            reading = beside.submit(tensors_of, open_storage(split_path(path)[0]), self.manifest.tensors)
            if self.manifest.kind == "full":
                for name, folders in snapshots_of(path, self.manifest, rows, is_needed=parts.takes).items():
                    ignored = parts.ignore_unknown_tables
                    prepared = StoreRestore(
                        rows[name], folders, lost=parts.lost.get(name), ignore_unknown_tables=ignored
                    )
                    self._prepared.append(undone.enter_context(prepared))
            self.state: dict[str, Any] = decode(self.manifest.state, reading.result())
            """The trees with their tensors."""
            self._closing = undone.pop_all()

    @property
    def saved(self) -> SavedCheckpoint:
        """Identity of the checkpoint."""
        return SavedCheckpoint(path=self.path, step=self.manifest.step, generation=self.manifest.generation)

    def load_tables(self) -> None:
        """Replaces the rows and the progress of every store."""
        for prepared in self._prepared:
            prepared.load(generation=self.manifest.generation)

    def close(self) -> None:
        """Discards everything that was not loaded."""
        self._closing.close()


class Prepared(NamedTuple):
    """A checkpoint that was read and fits its target state."""

    checkpoint: LoadedCheckpoint
    saved: dict[str, Any]
    """Its trees, as the state takes them."""
    optimizers: dict[str, dict[str, Any]]
    """The state that each optimizer will load."""

    def close(self) -> None:
        """Closes the checkpoint without restoring it."""
        self.checkpoint.close()


def _by_itself(prepare: Callable[[], T]) -> T:
    """Prepares directly: a process that restores alone agrees with no other process."""
    return prepare()


def restore_all(
    path: str,
    state: TrainState,
    options: RestoreConfig,
    parts: Parts = ALL_PARTS,
    *,
    checked: Callable[[Callable[[], Prepared]], Prepared] = _by_itself,
) -> SavedCheckpoint:
    """Restores everything: tables, weights, optimizers, schedules, extra, generators, step and positions.

    If parts keep their state, step, positions and generators stay too: the run continues and is not set back. A
    process that has not made a step yet restores them nevertheless.

    Args:
        path: Prefix of the checkpoint.
        state: Target of the restore.
        options: What may differ.
        parts: Parts that keep their state, and parts that are restored partially.
        checked: Calls the function that reads and checks everything; nothing is changed before it returns.

    Raises:
        FailedPreconditionError: the state is made of other parts than the one that was saved; nothing was changed.
        NotFoundError, DataLossError: a file is missing or damaged; nothing was changed.
    """
    checkpoint, saved = _restore_model(path, state, options, parts, checked)
    names = [*({} if state.model is None else model_state(state.model)), *state.stores]
    has_kept = parts.lost or parts.lost_dense is not None or any(parts.keeps(name) for name in names)
    is_new = state.global_step == 0 and not state.applied
    if not has_kept or is_new:
        for part in ("schedules", "extra"):
            for name, value in getattr(state, part).items():
                if name in saved[part]:
                    value.load_state_dict(saved[part][name])
        set_random_state(saved["random"])
        state.global_step = checkpoint.manifest.step
        _take_positions(checkpoint, state)
    return checkpoint.saved


def restore_model(path: str, state: TrainState, options: RestoreConfig, parts: Parts = ALL_PARTS) -> SavedCheckpoint:
    """Restores tables, weights and optimizers, and keeps the rest of the run. Raises like `restore_all`."""
    checkpoint, _ = _restore_model(path, state, options, parts, _by_itself)
    return checkpoint.saved


def _restore_model(
    path: str,
    state: TrainState,
    options: RestoreConfig,
    parts: Parts,
    checked: Callable[[Callable[[], Prepared]], Prepared],
) -> tuple[LoadedCheckpoint, dict[str, Any]]:
    prepared = checked(lambda: _prepare(path, state, options, parts))
    with prepared.checkpoint as checkpoint:
        checkpoint.load_tables()
    _note_origin(checkpoint, state)
    saved = prepared.saved
    _begin_anew(state, parts.keeps)
    if state.model is not None:
        load_model_state(state.model, saved["model"])
    for name, values in prepared.optimizers.items():
        state.optimizers[name].load_state_dict(values if state.dense is None else {**values, "state": {}})
    scatter_saved(saved, state, checkpoint.manifest.applied, parts.lost_dense)
    return checkpoint, saved


def _prepare(path: str, state: TrainState, options: RestoreConfig, parts: Parts) -> Prepared:
    """Reads and checks everything, and changes nothing."""
    parts = replace(parts, ignore_unknown_tables=options.ignore_unknown_tables)
    with ExitStack() as undone:
        checkpoint = undone.enter_context(LoadedCheckpoint(path, state.stores, parts))
        if not parts.is_whole and parts.lost_dense is None:
            bring_here(state)
        saved = adapt(checkpoint.state, state, options, parts.keeps)
        optimizers = require_fit(saved, state)
        if state.dense is None:
            require_level(saved)
        undone.pop_all()
    return Prepared(checkpoint, saved, optimizers)


def require_readable(path: str, state: TrainState, options: RestoreConfig | None) -> None:
    """Reads and checks everything except the tables, and changes nothing. Raises like `restore_all`.

    Without options it is not checked whether the checkpoint fits.
    """
    parts = Parts(rows={})
    if options is None:
        LoadedCheckpoint(path, state.stores, parts).close()
    else:
        _prepare(path, state, options, parts).close()


def restore_without_dense(
    path: str,
    state: TrainState,
    options: RestoreConfig,
    *,
    parts: Parts = ALL_PARTS,
    checked: Callable[[Callable[[], LoadedCheckpoint]], LoadedCheckpoint] = _by_itself,
) -> SavedCheckpoint:
    """Restores tables and positions; resets the dense part, and the step unless `continue_training` is set."""
    parts = replace(parts, ignore_unknown_tables=options.ignore_unknown_tables)
    with checked(lambda: LoadedCheckpoint(path, state.stores, parts)) as checkpoint:
        checkpoint.load_tables()
    _note_origin(checkpoint, state)
    _begin_anew(state, keep_nothing)
    saved = checkpoint.state["model"] or {}
    for name, module in state.embeddings.items():
        key = extra_state_of(name)
        if key in saved:
            module.set_extra_state(saved[key])
    state.global_step = checkpoint.manifest.step if options.continue_training else 0
    _take_positions(checkpoint, state)
    scatter_own(state, state.applied)
    return checkpoint.saved


def _note_origin(checkpoint: LoadedCheckpoint, state: TrainState) -> None:
    state.restored_from = RestoredFrom(checkpoint.manifest.step, dict(checkpoint.manifest.positions))


def _take_positions(checkpoint: LoadedCheckpoint, state: TrainState) -> None:
    state.applied = dict(checkpoint.manifest.applied)
    state.positions = dict(checkpoint.manifest.positions)


def _begin_anew(state: TrainState, keeps: Keeps) -> None:
    """Discards gradients, which belong to replaced rows, and makes workers join their stores again."""
    for name, module in state.embeddings.items():
        if not keeps(name):
            module.discard()
            module.leave()  # also where the checkpoint has no state of the module, which would do this


def require_fit(saved: Mapping[str, Any], state: TrainState) -> dict[str, dict[str, Any]]:
    """Checks names and shapes; returns the state that each optimizer will load."""
    if state.model is not None:
        _require_weights(saved["model"] or {}, model_state(state.model))
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
    changed = changed_weights(saved, own)
    if not changed:
        return
    lines = [f"{name!r} {what}" for name, what in changed.items()]
    left_out = ", ".join(map(repr, changed))
    if len(lines) > _SHOWN_CHANGES:
        lines[_SHOWN_CHANGES:] = [f"and {len(lines) - _SHOWN_CHANGES} more"]
        left_out = f"{next(iter(changed))!r}, ..."
    raise FailedPreconditionError(
        f"restore: the model is not the one that was saved: {'; '.join(lines)}. Build it as it was; or have these"
        f" weights start from their initial values by RestoreConfig(leave_out=[{left_out}]) or --leave_out"
        f" '{','.join(changed)}', all dense weights by clear_nn=True, and everything by another model directory;"
        " weights that were renamed are found by alias_map, and those of which only the shape differs by reshape=True"
    )


def changed_weights(saved: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, str]:
    """Returns weights that differ between a checkpoint and a model -> the difference, in words."""
    changed = {}
    for name in sorted({*saved, *own}):
        then, now = saved.get(name), own.get(name)
        if name not in saved:
            changed[name] = f"is new{_shape_of(now)}"
        elif name not in own:
            changed[name] = f"was removed{_shape_of(then)}"
        elif isinstance(now, Tensor) and (not isinstance(then, Tensor) or then.shape != now.shape):
            got = tuple(then.shape) if isinstance(then, Tensor) else then
            changed[name] = f"was saved with shape {got}, now {tuple(now.shape)}"
    return changed


def _shape_of(value: Any) -> str:
    return f", shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
