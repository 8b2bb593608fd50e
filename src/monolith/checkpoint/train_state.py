"""The state of a training run, as one object that can be saved and restored."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from monolith.errors import InvalidArgumentError
from monolith.nn import Embeddings
from monolith.nn.embeddings import EXTRA_STATE
from monolith.tables import BatchStamp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn
    from torch.optim import Optimizer

    from monolith.checkpoint.remote_dense import RemoteDense
    from monolith.tables import ChangePosition, Store

_NOTHING: Mapping[str, Any] = MappingProxyType({})
WHOLE_MODEL = "model"
"""Name of the store of a model that is an `Embeddings` itself."""


def extra_state_of(store: str) -> str:
    """Returns the name of a store's module state in the state dictionary of its model."""
    return EXTRA_STATE if store == WHOLE_MODEL else f"{store}.{EXTRA_STATE}"


@runtime_checkable
class Stateful(Protocol):
    """Anything whose state is a dictionary of plain values and tensors."""

    def state_dict(self) -> dict[str, Any]:
        """Returns its state."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Restores a state."""


class CutWitness(Protocol):
    """A participant in checkpoints: has a position of its own, such as in a delta log, to be saved with each one."""

    def before_cut(self) -> None:
        """Called before a cut is taken."""

    def after_cut(self, marks: Mapping[str, ChangePosition], *, step: int) -> bytes | None:
        """Returns the position to save; `marks` are those of the cut, by store. None: nothing to save."""

    def committed(self, path: str) -> None:
        """Called, in any thread, when the checkpoint of such a cut is committed, with its prefix; must not block."""


class RestoredFrom(NamedTuple):
    """Identity of the checkpoint from which state was restored."""

    step: int
    positions: Mapping[str, bytes]


class TrainState:
    """Everything that one checkpoint holds. The thread that trains owns it.

    Args:
        model: Its weights and buffers; the stores of every `Embeddings` in it are the tables.
        optimizers: Of the dense weights, by name.
        schedules: Learning-rate schedules by name.
        extra: Anything else that has a state, by name.
        global_step: Steps trained so far.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> state = TrainState(model=model, optimizers={"adam": torch.optim.Adam(model.parameters())})
    >>> stamp = state.next_stamp(b'{"file":"part-0","offset":4096}')  # of the batch that is trained on now
    >>> state.count_step(stamp)
    >>> state.global_step, state.position()
    (1, b'{"file":"part-0","offset":4096}')
    """

    def __init__(
        self,
        *,
        model: nn.Module | None = None,
        optimizers: Mapping[str, Optimizer] = _NOTHING,
        schedules: Mapping[str, Stateful] = _NOTHING,
        extra: Mapping[str, Stateful] = _NOTHING,
        global_step: int = 0,
    ) -> None:
        self.model = model
        self.optimizers = dict(optimizers)
        self.schedules = dict(schedules)
        self.extra = dict(extra)
        self.global_step = global_step
        self.applied: dict[int, BatchStamp] = {}
        """Worker -> its last batch in the dense weights; reading resumes at its position."""
        self.positions: dict[str, bytes] = {}
        """Positions of further inputs, by names of yours; that of the batches trained on is in `applied`."""
        self.witnesses: dict[str, CutWitness] = {}
        """Participants that report further positions at a cut, by the names of these positions."""
        self.restored_from: RestoredFrom | None = None
        """The checkpoint of the last restore, even if only of one server's rows, or of all but the dense weights; None:
        nothing was restored."""
        self.dense: RemoteDense | None = None
        """Owner of the dense weights that the optimizers update; None: they are those of the model."""
        for name, value in {**self.schedules, **self.extra}.items():
            if not isinstance(value, Stateful):
                raise InvalidArgumentError(
                    f"TrainState: {name!r} must have state_dict() and load_state_dict(), got {value!r}"
                )

    @property
    def embeddings(self) -> dict[str, Embeddings]:
        """The `Embeddings` of the model by the name of the module."""
        if self.model is None:
            return {}
        named = self.model.named_modules()
        return {name or WHOLE_MODEL: module for name, module in named if isinstance(module, Embeddings)}

    @property
    def stores(self) -> dict[str, Store]:
        """The stores of the model, each once, by the first module that has it."""
        stores: dict[int, tuple[str, Store]] = {}
        for name, module in self.embeddings.items():
            stores.setdefault(id(module.store), (name, module.store))
        return dict(stores.values())

    def position(self, worker: int = 0) -> bytes | None:
        """Returns the position at which a worker resumes reading; None: from the beginning."""
        stamp = self.applied.get(worker)
        return None if stamp is None or not stamp.position else stamp.position

    def next_stamp(self, position: bytes = b"", *, worker: int = 0, event_time_ms: int = 0) -> BatchStamp:
        """Returns the stamp of a worker's next batch, which ends at `position`: for `Embeddings`, then `count_step`."""
        last = self.applied.get(worker)
        free = [module.next_batch_of(worker) for module in self.embeddings.values()]
        seq = max([0 if last is None else last.seq + 1, *free])
        return BatchStamp(worker=worker, seq=seq, position=position, event_time_ms=event_time_ms)

    def count_step(self, stamp: BatchStamp | None = None) -> None:
        """Counts a step that was made with this batch."""
        self.global_step += 1
        if stamp is not None:
            self.applied[stamp.worker] = stamp

    def settle(self) -> None:
        """Called before a cut. Subclasses with updates in flight override it to apply them first."""

    def __repr__(self) -> str:
        parts = [
            f"global_step={self.global_step}",
            f"stores={list(self.stores)}",
            f"optimizers={list(self.optimizers)}",
        ]
        return f"TrainState({', '.join(parts)})"
