"""A module whose rows live in a store: how it trains there, and how torch saves, loads and copies it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, cast

import torch
from torch import Tensor, nn

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.nn.embeddings import saved_state as _saved_state
from monolith.nn.embeddings.gradient_step import StoreWorker
from monolith.nn.embeddings.passes import PassRegistry
from monolith.nn.embeddings.rows_optimizer import RowAnchor
from monolith.nn.embeddings.saved_state import (
    EXTRA_STATE,
    ROWS,
    pack_rows,
    rows_are_counted,
    rows_are_elsewhere,
    unpack_rows,
)
from monolith.tables import ALL_BUCKETS, BatchStamp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from monolith.nn.embeddings.merge import PlacedSlot
    from monolith.nn.embeddings.rows_optimizer import RowGradient
    from monolith.tables import Cut, Store, WorkerSession

M = TypeVar("M", bound=nn.Module)


_ANCHOR = "_anchor"
"""Name of the parameter that stands for the rows."""


class RowsModule(nn.Module):
    """The part of `Embeddings` besides lookup and learning. One thread trains it."""

    def __init__(
        self,
        store: Store,
        placed: Mapping[str, PlacedSlot],
        *,
        latest_dims: Sequence[int],
        empty_store: Callable[[], Store],
        rows_in_state_dict: bool,
        accumulated_passes: int,
    ) -> None:
        super().__init__()
        if not isinstance(rows_in_state_dict, bool):
            raise TypeError(f"Embeddings: rows_in_state_dict must be True or False, got {rows_in_state_dict!r}")
        if type(accumulated_passes) is not int or accumulated_passes < 1:
            raise InvalidArgumentError(
                f"Embeddings: accumulated_passes must be an integer >= 1, got {accumulated_passes!r}"
            )
        self.store: Store = store
        """The store of the rows."""
        self._placed = dict(placed)
        self._rows_in_state_dict = rows_in_state_dict
        self._empty_store = empty_store
        self._deep_copies: Literal["share", "clone"] | None = None
        self._worker = StoreWorker(store)
        self._latest_dims = tuple(latest_dims)
        self._anchor = RowAnchor()
        self._accumulated_passes = accumulated_passes
        self._registry = PassRegistry(self._worker, self._anchor, self._latest_dims, accumulated_passes)

    @property
    def anchor(self) -> nn.Parameter:
        """Stands for all rows among the parameters of a model; its gradient is None when gradients were cleared."""
        # Not as an attribute: torch finds a parameter only after a search of attributes has failed.
        return cast("nn.Parameter", self._parameters[_ANCHOR])

    @property
    def row_gradient(self) -> RowGradient:
        """Stands for the gradients of the next step in an optimizer of torch."""
        return self._registry.row_gradient

    @property
    def num_cleared(self) -> int:
        """Backward passes since the last step whose gradients were cleared by `zero_grad()` of others."""
        return self._registry.num_cleared

    @property
    def num_rows(self) -> int:
        """Number of rows of all slots."""
        return self.store.stats().rows

    @property
    def global_step(self) -> int:
        """Number of steps made so far, and of the next step, for schedules."""
        return self._worker.global_step

    # As a worker of the store

    @property
    def next_batch(self) -> int:
        """The lowest number of a new stamp: every owner of rows has applied all batches below it."""
        return self._worker.next_seq()

    def next_batch_of(self, worker: int) -> int:
        """Returns `next_batch` of this worker, as which the module joins its store if it has not joined yet."""
        return self._worker.next_seq(worker)

    def join(self, worker: int = 0) -> WorkerSession:
        """Begins to train as this worker of the store; other modules with the same number are rejected from now on.

        Otherwise a module joins with its first batch that learns, as worker 0 or as the worker of the batch's stamp.

        Returns:
            The incarnation, with the last applied batch of this worker and its input position.
        """
        return self._worker.join(worker)

    def read_nothing(self) -> None:
        """Takes part in a read of the other ranks with no ids, where rows are shared among ranks."""
        splits = torch.zeros(len(self.store.schema.tables) + 1, dtype=torch.int64)
        stamp = BatchStamp(worker=self._worker.session.worker, seq=self._worker.next_seq())
        plan = self.store.plan(torch.empty(0, dtype=torch.int64), splits, stamp=stamp)
        self._worker.begin_read(plan, train=True)
        self._worker.discard(plan)

    def follow_step(self, step: int) -> None:
        """Counts a step that other ranks have made without a batch of this rank."""
        self._worker.global_step = max(self._worker.global_step, step + 1)

    def leave(self) -> None:
        """Lets the next batch that learns join again, after the rows were restored to another state."""
        self._worker.leave()

    def evict(self, now: int | None = None) -> int:
        """Removes rows whose slot's `expire_days` have passed at `now` (None: the newest time trained on)."""
        return self._worker.session.evict(now=-1 if now is None else now)

    def cut(self, *, timeout_seconds: float = 600.0) -> Cut:
        """Takes a consistent cut of its store, with every step made so far; release it after reading it."""
        return self._worker.cut(timeout_seconds=timeout_seconds)

    # Saving

    def saved_state(self) -> dict[str, Any]:
        """Returns progress and location of each slot's rows, as plain values that `set_extra_state` takes."""
        return _saved_state.save(self._worker, self._placed)

    def get_extra_state(self) -> Tensor:
        """Returns the saved state as a tensor, for `state_dict` and programs that save tensors only."""
        return _saved_state.encode(self.saved_state(), num_rows=self.num_rows if rows_are_counted() else 0)

    def set_extra_state(self, state: Mapping[str, Any] | Tensor) -> None:
        """Loads the state, for `load_state_dict`. Does not change rows.

        Raises:
            FailedPreconditionError: a slot is not what it was when the state was saved; names it.
        """
        saved = _saved_state.decode(state)
        _saved_state.require_same_slots(saved, self._placed)
        self._worker.leave()
        self._worker.global_step = int(saved["global_step"])

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        del destination[prefix + _ANCHOR]
        if self._rows_in_state_dict and not rows_are_elsewhere():
            destination[prefix + ROWS] = self._packed_rows()

    def _packed_rows(self) -> Tensor:
        try:
            cut = self.cut()
        except FailedPreconditionError as error:
            raise FailedPreconditionError(
                f"state_dict: the {self.num_rows:,} embedding rows cannot be read now: {error}. Call state_dict() again"
                " when the checkpoint that is being written is complete, or inside `with ml.nn.without_rows():` to save"
                " the weights without the rows"
            ) from error
        return pack_rows(cut, self.store.schema)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        _, _, missing_keys, unexpected_keys, _ = args
        unknown = []
        if not rows_are_elsewhere():
            unknown = self._load_rows(state_dict.get(prefix + EXTRA_STATE), state_dict.get(prefix + ROWS))
        super()._load_from_state_dict(state_dict, prefix, *args)
        missing_keys.remove(prefix + _ANCHOR)
        if prefix + ROWS in unexpected_keys:
            unexpected_keys.remove(prefix + ROWS)
        # With strict=True torch rejects unexpected keys, with strict=False it ignores them.
        unexpected_keys += [f"{prefix}{ROWS} of table {name!r}" for name in unknown]

    def _load_rows(self, state: Any, rows: Tensor | None) -> list[str]:
        """Replaces the rows of the store by those of a state dictionary, if it has any; returns the tables skipped."""
        if state is not None:
            state = _saved_state.decode(state)
            _saved_state.require_same_slots(state, self._placed)
        if rows is not None:
            blocks, unknown = unpack_rows(rows, self.store.schema)
            self.store.load(blocks, buckets=ALL_BUCKETS, replace=True)
            self._registry.discard()
            self._worker.leave()
            return unknown
        if state is not None:
            _saved_state.require_rows(state, num_rows=self.num_rows)
        return []

    # Copying

    @property
    def deep_copies(self) -> Literal["share", "clone"] | None:
        """What `copy.deepcopy` of the module, or of a model with it, does with the rows; None: it raises.

        `share`: the copy looks up and trains the same rows, as for an average of dense weights. `clone`: the copy gets
        rows of its own, as for a copy of the best model.
        """
        return self._deep_copies

    @deep_copies.setter
    def deep_copies(self, kind: Literal["share", "clone"] | None) -> None:
        if kind not in {None, "share", "clone"}:
            raise InvalidArgumentError(f"Embeddings: deep_copies must be 'share', 'clone' or None, got {kind!r}")
        self._deep_copies = kind

    def clone_rows(self) -> Self:
        """Returns a module like this one with a store and rows of its own: training one does not change the other.

        Takes the memory of the rows once more. Gradients are not copied.
        """
        return self._copy({}, self._cloned_store())

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        if self._deep_copies is None:
            raise FailedPreconditionError(
                "deepcopy: rows live in a store, and a copy can share it or get rows of its own; set"
                " emb.deep_copies = 'share' (an average of dense weights, such as AveragedModel) or 'clone' (a copy of"
                " the best model that later steps must not change), or copy one module by emb.clone_rows()"
            )
        if self._deep_copies == "share":
            return self._copy(memo, self.store)
        store = memo.get(id(self.store))
        if store is None:
            store = memo[id(self.store)] = self._cloned_store()
        return self._copy(memo, store)

    def _cloned_store(self) -> Store:
        store = self._empty_store()
        with self.cut() as cut:
            store.load(cut.blocks(ALL_BUCKETS, state=True), buckets=ALL_BUCKETS, replace=True)
        return store

    def _copy(self, memo: dict[int, Any], store: Store) -> Self:
        worker = self._worker
        if store is not self.store:
            worker = StoreWorker(store)
            worker.global_step = self.global_step
        anchor = RowAnchor(requires_grad=self._anchor.requires_grad)
        registry = PassRegistry(worker, anchor, self._latest_dims, self._accumulated_passes)
        copied = copy_module(self, memo, store=store, _worker=worker, _registry=registry)
        copied.register_parameter(_ANCHOR, anchor)
        return copied

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "Embeddings cannot be pickled: rows live in its store; save the model by ml.save(model, path), or its"
            " state_dict()"
        )


def copy_module(module: M, memo: dict[int, Any], **own: object) -> M:
    """Returns a copy with its own buffers, hooks and `own` attributes that shares everything else."""
    copied = type(module).__new__(type(module))
    memo[id(module)] = copied
    copied.__dict__.update(module.__dict__)
    for name, value in module.__dict__.items():
        if isinstance(value, dict | set):  # what torch keeps for every module: parameters, buffers, hooks
            copied.__dict__[name] = copy.deepcopy(value, memo) if name == "_buffers" else copy.copy(value)
    copied.__dict__.update(own)
    return copied
