"""A consistent cut of a training run: what a checkpoint is written from.

Tensors are copied to memory that was touched before (`Staging`), which makes a cut of dense weights short: the first
touch of a page costs more than ten times what copying it costs, so one buffer is kept for all saves.
"""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from monolith.checkpoint.remote_dense import NOT_A_WEIGHT, DenseCut, local_optimizer_tree, remote_names
from monolith.checkpoint.state_dicts import model_state, random_state
from monolith.checkpoint.tensor_file import large_buffer
from monolith.checkpoint.value_tree import TreeEncoder
from monolith.errors import InvalidArgumentError
from monolith.files import is_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.checkpoint.train_state import CutWitness, TrainState
    from monolith.tables import BatchStamp, Cut, Schema


class StoreCut(NamedTuple):
    """The cut of one store, and what its rows hold."""

    cut: Cut
    schema: Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCut:
    """Everything that a checkpoint holds, as it was between two steps. Valid until `release`."""

    step: int
    applied: Mapping[int, BatchStamp]
    """Worker -> its last batch in the dense weights."""
    positions: Mapping[str, bytes]
    stores: Mapping[str, StoreCut]
    state: Mapping[str, Any]
    """Trees of plain values; tensors are references into `tensors`."""
    tensors: Mapping[str, Tensor]
    dense: DenseCut | None = None
    """Dense weights that are still with their owners; None: they are in `tensors`."""
    witnesses: tuple[CutWitness, ...] = ()
    """Notified when the checkpoint is in place."""

    def complete(self) -> StateCut:
        """Returns the cut with its dense weights, which are gathered while training continues."""
        if self.dense is None:
            return self
        parts = self.dense.put_into(self.state, self.tensors)
        return replace(self, state=parts.trees, tensors=parts.tensors, applied=parts.applied, dense=None)

    def release(self) -> None:
        """Lets stores discard old row images, and owners of dense weights their copies. Idempotent."""
        for store in self.stores.values():
            store.cut.release()
        if self.dense is not None:
            self.dense.frozen.release()


def take_cut(
    state: TrainState, *, staging: Staging | None, dense_only: bool = False, flush_timeout_seconds: float = 600.0
) -> StateCut:
    """Freezes a run; the caller is the thread that trains, between two steps.

    Updates in flight reach their store first. Rows are frozen, not copied; dense tensors are copied into `staging`, or
    are the live ones where that is None: then training must pause until the cut was written. Dense weights of other
    processes are copied there, consistent with the rows; `StateCut.complete` gathers them.

    Raises:
        InvalidArgumentError: something cannot be saved; names it.
        DeadlineExceededError: updates did not arrive in time.
    """
    state.settle()
    for witness in state.witnesses.values():
        witness.before_cut()
    with ExitStack() as undone, nullcontext() if state.dense is None else state.dense.held():
        stores: dict[str, StoreCut] = {}
        for name, store in ({} if dense_only else state.stores).items():
            require_folder_name(name)
            cut = state.embeddings[name].cut(timeout_seconds=flush_timeout_seconds)
            undone.callback(cut.release)
            stores[name] = StoreCut(cut, store.schema)
        dense = None
        if state.dense is not None:
            dense = DenseCut(state.dense.freeze(), remote_names(state))
            undone.callback(dense.frozen.release)
        trees, tensors = encode_state(state)
        if staging is not None:
            tensors = staging.copy(tensors)
        frozen = StateCut(
            step=state.global_step,
            applied=_applied_by_all(state, stores),
            positions=_positions(state, stores),
            stores=stores,
            state=trees,
            tensors=tensors,
            dense=dense,
            witnesses=tuple(state.witnesses.values()),
        )
        undone.pop_all()
        return frozen


def _positions(state: TrainState, stores: Mapping[str, StoreCut]) -> dict[str, bytes]:
    """Returns the positions of further inputs, and those that witnesses report for this cut."""
    marks = {name: store.cut.mark for name, store in stores.items()}
    reported = {name: witness.after_cut(marks, step=state.global_step) for name, witness in state.witnesses.items()}
    kept = {name: position for name, position in state.positions.items() if name not in reported}
    return {**kept, **{name: position for name, position in reported.items() if position is not None}}


def _applied_by_all(state: TrainState, stores: Mapping[str, StoreCut]) -> dict[int, BatchStamp]:
    """Returns the last batch of every worker: of this process, and of others the last that every owner has."""
    others: dict[int, BatchStamp] = {}
    for clock in (clock for store in stores.values() for clock in store.cut.applied):
        for worker, stamp in clock.stamps.items():
            known = others.get(worker, stamp)
            others[worker] = min(known, stamp, key=lambda candidate: candidate.seq)
    known_here = {
        worker: stamp
        for worker, stamp in state.applied.items()
        if worker not in others or others[worker].seq <= stamp.seq  # else a restored stamp, older than that worker's
    }
    return {**others, **known_here}


def require_folder_name(store: str) -> None:
    """Rejects a store whose name cannot be that of a folder.

    Raises:
        InvalidArgumentError: the name is unusable; the message names the remedy.
    """
    if not is_name(store):
        raise InvalidArgumentError(
            f"checkpoint: the name of a module with tables becomes that of a folder, got {store!r}; name the module"
            " without slashes"
        )


def encode_state(state: TrainState) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Returns the trees of plain values and the live tensors of everything in this process except the tables."""
    encoder = TreeEncoder()
    trees: dict[str, Any] = {"model": _model_tree(state, encoder)}
    trees["optimizers"] = {name: local_optimizer_tree(state, name, encoder) for name in state.optimizers}
    for part in ("schedules", "extra"):
        trees[part] = {
            name: encoder.encode(value.state_dict(), f"{NOT_A_WEIGHT}{part}/{name}")
            for name, value in getattr(state, part).items()
        }
    trees["random"] = encoder.encode(random_state(), f"{NOT_A_WEIGHT}random")
    return trees, encoder.tensors


def _model_tree(state: TrainState, encoder: TreeEncoder) -> dict[str, Any] | None:
    if state.model is None:
        return None
    saved = model_state(state.model)
    for name in saved:
        if name.startswith(NOT_A_WEIGHT):
            raise InvalidArgumentError(f"checkpoint: a weight must not be called {name!r}: {NOT_A_WEIGHT} is reserved")
    elsewhere = remote_names(state)
    return {name: encoder.encode(value, name) for name, value in saved.items() if name not in elsewhere}


_ALIGNMENT = 64


class Staging:
    """A buffer that holds one copy of a set of tensors. One thread at a time."""

    def __init__(self) -> None:
        self._buffer: Tensor = torch.empty(0, dtype=torch.uint8)

    @property
    def bytes(self) -> int:
        """Size of the buffer."""
        return self._buffer.numel()

    def prepare(self, tensors: Mapping[str, Tensor]) -> None:
        """Makes the buffer large enough for these, and touches it."""
        size = sum(_padded(tensor) for tensor in tensors.values())
        if self._buffer.numel() < size:
            pinned = any(tensor.is_cuda for tensor in tensors.values())
            self._buffer = (
                torch.empty(size, dtype=torch.uint8, pin_memory=True) if pinned else large_buffer(size).zero_()
            )

    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Contiguous copies on the CPU, valid until the next call."""
        self.prepare(tensors)
        copies: dict[str, Tensor] = {}
        offset = 0
        for name, tensor in tensors.items():
            raw = self._buffer[offset : offset + tensor.numel() * tensor.element_size()]
            copies[name] = raw.view(tensor.dtype).view(tensor.shape)
            offset += _padded(tensor)
        for name, tensor in tensors.items():
            copies[name].copy_(tensor, non_blocking=True)
        for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
            torch.cuda.synchronize(device)
        return copies


def _padded(tensor: Tensor) -> int:
    size = tensor.numel() * tensor.element_size()
    return size + -size % _ALIGNMENT
