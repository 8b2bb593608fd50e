"""Records one call of a model: its lookups, with the column of each slot and the outputs, and its torch calls.

`torch.export` traces a model through the same calls that are logged here. So a model with the log of an earlier one,
with equal numbers, sizes and constants and with weights by name, would be traced to the same graph.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from monolith.data import Batch, ColumnValues
from monolith.errors import InvalidArgumentError
from monolith.export.layout_spec import POOLINGS, FeatureSpec
from monolith.nn import EmbeddingOutputs, Embeddings
from monolith.nn.embeddings import BatchContext

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class WatchedBatch(Batch):
    """A batch that records which of its columns were read. The number of rows is not checked: it may be symbolic."""

    __slots__ = ("read",)

    def __init__(self, columns: Mapping[str, ColumnValues], *, num_rows: int) -> None:
        super().__init__({}, num_rows=num_rows)
        self._columns = dict(columns)
        self.read: dict[str, ColumnValues] = {}

    def __getitem__(self, name: str) -> ColumnValues:
        found = super().__getitem__(name)
        self.read[name] = found
        return found

    def unwatched(self, name: str) -> ColumnValues | None:
        """Returns a column without recording the read."""
        return super().__getitem__(name) if name in self._columns else None


class LookupRecorder:
    """The lookups of one call of a model. Not thread-safe.

    Embeddings are given by module name; two of them may share a store.
    """

    def __init__(self, embeddings: Mapping[str, Embeddings], stores: Mapping[str, object]) -> None:
        self._names = {id(module): name for name, module in embeddings.items()}
        self._stores = {id(store): name for name, store in stores.items()}
        self._found: dict[tuple[int, str, str], str] = {}
        self.features: dict[str, FeatureSpec] = {}
        """Output name -> feature that was looked up."""
        self.outputs: dict[str, Tensor] = {}
        """Output name -> result of the lookup."""

    def recording(self, batch: WatchedBatch) -> BatchContext:
        """Returns a `BatchContext` in which lookups are made and recorded."""
        return BatchContext(batch, lookup_override=lambda module, asked: self._record(module, asked, batch))

    def replaying(self, batch: WatchedBatch, outputs: Mapping[str, Tensor]) -> BatchContext:
        """Returns a `BatchContext` in which lookups return these outputs instead."""
        return BatchContext(batch, lookup_override=lambda module, asked: self._answer(module, asked, batch, outputs))

    def _record(self, module: Embeddings, asked: Mapping[str, Any], batch: WatchedBatch) -> EmbeddingOutputs:
        columns = _columns_of(module, asked, batch)
        with BatchContext({}):
            given = {slot: _given(asked, slot) for slot in module.slots}
            looked_up: EmbeddingOutputs = module({slot: ids for slot, ids in given.items() if ids is not None})
        for slot, column in columns.items():
            key = id(module), slot, column
            if key not in self._found:
                self._found[key] = name = self._new_name(module, slot, column)
                self.features[name] = self._feature(module, slot, column, name)
            self.outputs[self._found[key]] = looked_up[slot]
        return looked_up

    def _answer(
        self, module: Embeddings, asked: Mapping[str, Any], batch: WatchedBatch, outputs: Mapping[str, Tensor]
    ) -> EmbeddingOutputs:
        columns = _columns_of(module, asked, batch)
        found = {slot: outputs[self._found[id(module), slot, column]] for slot, column in columns.items()}
        return EmbeddingOutputs(found, torch.cat([each.flatten(1) for each in found.values()], dim=1))

    def _new_name(self, module: Embeddings, slot: str, column: str) -> str:
        wanted = slot if slot == column else f"{slot}.{column}"
        return wanted if wanted not in self.features else f"{self._names[id(module)]}.{wanted}"

    def _feature(self, module: Embeddings, slot: str, column: str, name: str) -> FeatureSpec:
        placed = module.placed[slot]
        return FeatureSpec(
            name=name,
            store=self._stores[id(module.store)],
            table=placed.table,
            dims=tuple(placed.slot.slice_dims),
            pooling=POOLINGS[placed.combiner.number],
            max_sequence_length=placed.combiner.max_seq_length,
            id_layout=placed.slot.id_layout,
            number=placed.number,
            wide_index=placed.wide_index,
            padding_id=placed.slot.padding_id,
            column=None if column == name else column,
        )


def _given(asked: Mapping[str, Any], slot: str) -> Any:
    return asked.unwatched(slot) if isinstance(asked, WatchedBatch) else asked.get(slot)


def _columns_of(module: Embeddings, asked: Mapping[str, Any], batch: WatchedBatch) -> dict[str, str]:
    """Returns slot -> column of the batch that is looked up."""
    found = {}
    for slot in module.slots:
        ids = _given(asked, slot)
        if asked is batch or (ids is not None and ids is batch.unwatched(slot)):
            found[slot] = slot
            continue
        same = [name for name in batch if ids is not None and batch.unwatched(name) is ids]
        if not same:
            raise InvalidArgumentError(
                f"slot {slot!r}: the model looks up ids that are no column of the batch; an export takes ids from"
                " requests alone: make a column of them"
            )
        found[slot] = same[0]
    return found


_Described: TypeAlias = "tuple[Any, ...]"
_PLAIN = (int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


class CallLog(NamedTuple):
    """Log of the calls of a function; equal logs mean equal graphs."""

    given: tuple[_Described, ...]
    """Names, types and sizes of inputs and weights."""
    calls: tuple[_Described, ...]
    """Operations with their arguments."""
    returned: tuple[_Described, ...]


def log_calls(
    function: Callable[[dict[str, Tensor]], tuple[Tensor, ...]],
    inputs: dict[str, Tensor],
    weights: Mapping[str, Tensor],
) -> CallLog | None:
    """Calls a function, and logs its torch operations. The state of the CPU random generator is restored.

    The values of `weights` may differ in another call. None: the log is not conclusive, because the function reads
    values of tensors, or raises.
    """
    recorder = _Recorder()
    given = [recorder.know(name, tensor) for name, tensor in (*inputs.items(), *weights.items())]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), recorder:
            returned = function(inputs)
    except Exception:  # noqa: BLE001 - the tracer reports the error
        return None
    if not recorder.is_clear:
        return None
    return CallLog(tuple(given), tuple(recorder.calls), tuple(map(recorder.described, returned)))


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Logs every operation with its arguments: tensors by their origin, everything else by value."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[_Described] = []
        self.is_clear = True
        """Whether equal logs imply equal graphs."""
        self._names: dict[int, str] = {}
        self._seen: list[Tensor] = []
        """Keeps tensors alive, so that no id is reused."""

    def know(self, name: str, tensor: Tensor) -> _Described:
        """Names a tensor; returns its description without its values."""
        self._names.setdefault(id(tensor), name)
        self._seen.append(tensor)
        return name, self._names[id(tensor)], tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device

    def described(self, value: Any) -> _Described:
        """Returns a comparable description of a value; of an unnamed tensor, its values."""
        if isinstance(value, Tensor):
            name = self._names.get(id(value))
            return ("tensor", name) if name is not None else self._constant(value)
        if isinstance(value, list | tuple):
            return (type(value).__name__, *map(self.described, value))
        if isinstance(value, dict):
            return ("dict", *((key, self.described(each)) for key, each in value.items()))
        if type(value) not in _PLAIN:
            self.is_clear = False
        return type(value).__name__, repr(value)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.calls.append((str(func), self.described(args), self.described(kwargs or {})))
        found = func(*args, **(kwargs or {}))
        for place, each in enumerate(tree_leaves(found)):
            if isinstance(each, Tensor):
                self._names[id(each)] = f"{len(self.calls)}:{place}"
                self._seen.append(each)
            else:
                self.is_clear = False  # a value of a tensor, on which later calls may depend
        return found

    def _constant(self, tensor: Tensor) -> _Described:
        self._seen.append(tensor)
        if tensor.layout is not torch.strided or tensor.device.type != "cpu":
            self.is_clear = False
            return ("unclear",)
        data = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return "constant", tensor.dtype, tuple(tensor.shape), tensor.stride(), hashlib.sha256(data).digest()
