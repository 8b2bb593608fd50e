"""A lookup: pools the distinct rows of a plan to the outputs of all slots, and sums the outputs' gradients by row.

Dims: B examples, n ids, U distinct (table, id) pairs, V floats of their rows, W floats of an example's outputs::

    values [V] --by plan.inverse--> a row for each id [n] --combiner--> columns of the slots --> outputs [B, W]

Flat order of slots is that of the ids in a plan: by table, then as in the model.

All outputs are views of one buffer, and all gradients arrive together at one node of autograd. To a GPU the outputs go
from page-locked memory, on a stream of their own: the copy begins although the model's stream is still busy with the
step before. The gradients are copied into such memory, too, which takes half the time of a copy into other memory.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from monolith import _core
from monolith.errors import InvalidArgumentError
from monolith.nn.embeddings import torch_pooling as _torch_pooling
from monolith.nn.embeddings.device_pooling import DeviceBatch, side_streams
from monolith.tables import buckets_of_plan, ids_of_keys, new_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from monolith.nn.embeddings.id_batch import BatchShape
    from monolith.nn.embeddings.merge import PlacedSlot
    from monolith.nn.embeddings.passes import BatchPass, PassHandle
    from monolith.tables import KernelRows, Plan


class RowGradients(NamedTuple):
    """Gradients of the rows of a batch."""

    values: Tensor
    """float32 [V]."""
    is_finite: bool
    """False: not checked."""


class PooledLayout:
    """Location of the rows and outputs of a set of slots. Immutable and thread-safe."""

    def __init__(self, slots: Sequence[PlacedSlot], tables: Sequence[str], dims: Sequence[int]) -> None:
        """Takes the slots in flat order, and the tables' rows' dims."""
        self.slots = tuple(slots)
        self.model_slots = tuple(sorted(slots, key=lambda slot: slot.column))
        """The slots in the order of the model, which is that of the columns."""
        self.sequences = [place for place, slot in enumerate(self.model_slots) if slot.combiner.max_seq_length > 0]
        """Indices of the slots with outputs [B, n, dim]."""
        self.widths = [slot.width for slot in self.model_slots]
        self.width = sum(self.widths)
        """Floats of the outputs of one example (W)."""
        self.dims = tuple(dims)
        self.slots_of_tables = [[place for place, slot in enumerate(slots) if slot.table == name] for name in tables]
        self._model_places = [self.model_slots.index(slot) for slot in slots]
        self._dims_on: dict[torch.device, Tensor] = {}
        owners = [(slot.table, slot.number) for slot in slots]
        self.kernel = _core.PooledLayout(
            tables=[tables.index(slot.table) for slot in slots],
            columns=[slot.column for slot in slots],
            places=[slot.combiner.max_seq_length for slot in slots],
            poolings=[slot.combiner.number for slot in slots],
            owners=[owners.index(owner) for owner in owners],
            dims=list(dims),
            width=self.width,
        )

    def flat_columns(self, of_slots: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Returns [B, width] of each slot, in the order of the model, from tensors with the shapes of its outputs."""
        columns = list(of_slots)
        for place in self.sequences:
            own = columns[place]
            columns[place] = None if own is None else own.flatten(1)
        return columns

    def dims_on(self, device: torch.device) -> Tensor:
        """Returns int32 [T]: the dims of the tables' rows, on a device."""
        if device not in self._dims_on:
            self._dims_on[device] = torch.tensor(self.dims, dtype=torch.int32).to(device)
        return self._dims_on[device]

    def in_flat_order(self, of_slots: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Reorders a list from the order of the model to flat order."""
        return [of_slots[place] for place in self._model_places]


_HostArrays: TypeAlias = "tuple[int, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]"


class PooledBatch:
    """One batch of a layout: made once, used forward and backward."""

    __slots__ = ("_arrays", "_on_device", "layout", "plan", "shape")

    def __init__(self, layout: PooledLayout, plan: Plan, shape: BatchShape, rows: KernelRows | None = None) -> None:
        """Takes the store of the rows if its device has kernels."""
        self.layout = layout
        self.plan = plan
        self.shape = shape
        self._on_device = None if rows is None else DeviceBatch(layout, plan, shape, rows)
        self._arrays: _HostArrays | None = None

    def pool(self, values: Tensor, *, pinned: bool = False) -> Tensor:
        """Returns the outputs of all slots, float32 [B, W], from the rows of the plan, float32 [V]; on their device.

        With `pinned` those of the host are in page-locked memory, from which a GPU copies without waiting.
        """
        if self._on_device is not None:
            return self._on_device.pool(values)
        if not values.is_cpu:
            return _torch_pooling.pool(self.layout, values, self.plan, self.shape)
        size = self.shape.num_examples, self.layout.width
        if pinned:
            outputs = torch.empty(size, pin_memory=True)
            self.layout.kernel.pool(*self._host_arrays(), values.numpy(), outputs.view(-1).numpy())
            return outputs
        rows = new_rows(size)
        self.layout.kernel.pool(*self._host_arrays(), values.numpy(), rows.reshape(-1))
        return torch.from_numpy(rows)

    def sum_gradients(
        self, whole: Tensor | None, columns: Sequence[Tensor | None], device: torch.device
    ) -> RowGradients:
        """Returns the gradient of the rows from those of the outputs, all on `device`.

        The gradients of the buffer of all outputs [B, W] and of each slot's columns [B, width], in the order of the
        model, add up; None stands for zeros. The gradients of a row are added in a fixed order.
        """
        if self._on_device is not None:
            return RowGradients(self._on_device.sum_gradients(self._gradients(whole, columns)), is_finite=False)
        if device.type != "cpu":
            summed = _torch_pooling.sum_gradients(self.layout, whole, columns, self.plan, self.shape, device)
            return RowGradients(summed, is_finite=False)
        sums = new_rows((self.plan.num_values,))
        gradients = self._gradients(whole, columns)
        arrays = (
            _side_by_side(gradients)
            if isinstance(gradients, Tensor)
            else [None if gradient is None else _side_by_side(gradient) for gradient in gradients]
        )
        # Without the core's plan the kernel groups the ids by itself.
        is_finite = self.layout.kernel.sum_gradients(*self._host_arrays(), arrays, sums, self.plan.core)
        return RowGradients(torch.from_numpy(sums), is_finite)

    def _host_arrays(self) -> _HostArrays:
        """Returns what the core takes of shape and plan."""
        if self._arrays is None:
            shape, plan = self.shape, self.plan
            # Views of a tensor cost more than the kernel's call, so those of the core's plans are not made.
            own = plan.core
            splits, inverse = (plan.splits.numpy(), plan.inverse.numpy()) if own is None else (own.splits, own.inverse)
            self._arrays = (shape.num_examples, shape.ids_per_example, shape.row_splits.reshape(-1), splits, inverse)
        return self._arrays

    def _gradients(self, whole: Tensor | None, columns: Sequence[Tensor | None]) -> Tensor | list[Tensor | None]:
        """Returns [B, W] of all slots, or [B, width] of each, or None, in flat order."""
        if whole is None:
            return self.layout.in_flat_order(columns)
        if any(part is not None for part in columns):
            whole = whole.detach().clone()
            for part, own in zip(whole.split_with_sizes(self.layout.widths, dim=1), columns, strict=True):
                if own is not None:
                    part.add_(own)
        return whole


def _side_by_side(gradient: Tensor) -> NDArray[np.float32]:
    """Returns the floats of each example without gaps; `expand` may have put all examples in one place."""
    detached = gradient.detach() if gradient.requires_grad else gradient
    rows: NDArray[np.float32] = detached.numpy()
    return rows if rows.strides[1] == rows.itemsize or rows.shape[1] == 1 else np.ascontiguousarray(rows)


class EmbeddingOutputs(dict[str, Tensor]):
    """Slot name -> its output, float32 [B, dim] (or [B, n, dim] for `FirstN`), in the order of the slots.

    All outputs are views of one buffer, so `concat` and `stack` of all slots cost nothing. Change none in place.
    """

    def __init__(self, outputs: Mapping[str, Tensor], buffer: Tensor) -> None:
        super().__init__(outputs)
        self._buffer = buffer

    def concat(self, *names: str) -> Tensor:
        """[B, sum of widths]: the outputs side by side, all of them or those named; sequences are laid flat."""
        if not names:
            return self._buffer
        return torch.cat([self[name].flatten(1) for name in names], dim=1)

    def stack(self, *names: str) -> Tensor:
        """[B, slots, dim]: one row for each slot, all of them or those named.

        Raises:
            InvalidArgumentError: their outputs differ in shape.
        """
        shapes = {name: tuple(self[name].shape[1:]) for name in names or self}
        first = next(iter(shapes.values()))
        if len(set(shapes.values())) > 1:
            raise InvalidArgumentError(f"stack: slots must have outputs of one shape, got {shapes}; use concat")
        if names:
            return torch.stack([self[name] for name in names], dim=1)
        return self._buffer.view(self._buffer.shape[0], len(self), *first)  # len() would be a number in a graph


class LookupFunction(torch.autograd.Function):
    """Returns a buffer [B, W] and its columns, and collects their gradients for the rows they were pooled from.

    Its first argument takes no part in the mathematics. It requires a gradient, so that torch calls `backward`; it gets
    one of zero, which torch clears when it clears all gradients.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, buffer: Tensor, layout: PooledLayout, end: PassHandle) -> tuple[Tensor, ...]:
        """Returns the buffer, then the output of each slot in the order of the model."""
        ctx.set_materialize_grads(False)
        ctx.layout, ctx.end, ctx.anchor = layout, end, anchor
        whole = buffer.detach()  # an input returned as it is would not count as an output of this node
        return whole, *outputs_of(whole, layout)

    @staticmethod
    def backward(ctx: Any, whole: Tensor | None, *parts: Tensor | None) -> tuple[Tensor | None, ...]:
        """Adds up the gradients of the buffer and of its columns."""
        # With create_graph=True this could be differentiated again, which raises.
        collect = _collect_once if torch.is_grad_enabled() else _collect
        return collect(ctx, whole, *parts)


def _collect(ctx: Any, whole: Tensor | None, *parts: Tensor | None) -> tuple[Tensor | None, ...]:
    registry, batch_pass = ctx.end.find()
    device, layout = batch_pass.device, ctx.layout
    columns = layout.flat_columns(parts)
    first = next((gradient for gradient in (whole, *parts) if gradient is not None), None)
    if first is not None and first.device != device:  # all are where the buffer is
        whole, columns = _moved(whole, columns, layout, device), [None] * len(columns)
    registry.add_gradient(batch_pass, batch_pass.pooled.sum_gradients(whole, columns, device))
    return ctx.anchor.new_zeros(ctx.anchor.shape), None, None, None


_collect_once = once_differentiable(_collect)


def look_up(anchor: Tensor, buffer: Tensor, layout: PooledLayout, end: PassHandle) -> tuple[Tensor, ...]:
    """Calls `LookupFunction` with types: returns the buffer and its columns, differentiable."""
    outputs: tuple[Tensor, ...] = LookupFunction.apply(anchor, buffer, layout, end)  # type: ignore[no-untyped-call]
    return outputs


def outputs_of(buffer: Tensor, layout: PooledLayout) -> list[Tensor]:
    """Returns the output of each slot, in the order of the model, as a view of the buffer [B, W]."""
    outputs = list(buffer.split_with_sizes(layout.widths, dim=1))
    for place in layout.sequences:
        slot = layout.model_slots[place]
        outputs[place] = outputs[place].view(slot.combiner.shape(buffer.shape[0], slot.dim))
    return outputs


def _moved(
    whole: Tensor | None, columns: Sequence[Tensor | None], layout: PooledLayout, device: torch.device
) -> Tensor:
    """Returns all gradients [B, W] on another device, by one transfer."""
    first = next(gradient for gradient in (whole, *columns) if gradient is not None)
    total = torch.zeros(first.shape[0], layout.width, device=first.device) if whole is None else whole.clone()
    for column, gradient in zip(total.split_with_sizes(layout.widths, dim=1), columns, strict=True):
        if gradient is not None:
            column.add_(gradient)
    return to_memory_of(device, total)


def to_device(outputs: Tensor, device: torch.device) -> Tensor:
    """Returns the outputs on a device, for use on the current stream of the calling thread."""
    if device.type != "cuda":
        return outputs.to(device)
    return side_streams().stage([outputs], device).receive()[0]


def to_memory_of(device: torch.device, gradients: Tensor) -> Tensor:
    """Returns the gradients on a device; waits for the copy."""
    if device.type != "cpu" or not gradients.is_cuda:
        return gradients.to(device)
    copy = torch.empty(gradients.shape, dtype=gradients.dtype, pin_memory=True)
    copy.copy_(gradients, non_blocking=True)
    torch.cuda.current_stream(gradients.device).synchronize()
    return copy


P = ParamSpec("P")
R = TypeVar("R")

_COMPILER = "torch._dynamo"


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """Applies `torch.compiler.disable` once the compiler is loaded: loading it takes as long as loading torch."""
    disabled: Callable[P, R] | None = None

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal disabled
        if disabled is None:
            if _COMPILER not in sys.modules:
                return function(*args, **kwargs)
            disabled = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
        return disabled(*args, **kwargs)

    return call


def values_of(plan: Plan, values: Tensor, dims: Sequence[int], is_chosen_table: Sequence[bool]) -> Tensor:
    """Returns, of flat values in plan order, those of some tables, on their device."""
    if all(is_chosen_table):
        return values
    tables = plan.tables
    is_chosen_value = torch.tensor(is_chosen_table)[tables].repeat_interleave(torch.tensor(dims)[tables])
    return values[is_chosen_value.to(values.device)]


# A store has only tables and keys; what follows maps them back to slots and ids.


def refusal_of(passes: Sequence[BatchPass], layout: PooledLayout, scale: float) -> str | None:
    """Names the first id whose gradients, added up over the passes, are not finite; None if all are."""
    sums: dict[tuple[int, int, int], NDArray[np.float32]] = {}
    dims = np.array(layout.dims)
    for batch_pass in passes:
        if batch_pass.gradient is None:
            continue
        tables, buckets = batch_pass.plan.tables.numpy(), buckets_of_plan(batch_pass.plan.splits.numpy(), len(dims))
        names = zip(tables.tolist(), buckets.tolist(), batch_pass.plan.unique_ids.tolist(), strict=True)
        parts = np.split(batch_pass.gradient.cpu().numpy(), np.cumsum(dims[tables])[:-1])
        for unique, (name, part) in enumerate(zip(names, parts, strict=False)):  # nothing is split to one part
            with np.errstate(over="ignore", invalid="ignore"):
                sums[name] = sums[name] + part if name in sums else part
                is_finite = np.isfinite(sums[name] * np.float32(scale)).all()
            if not is_finite:
                return _message(batch_pass, layout, unique, bucket=name[1])
    return None


def _message(batch_pass: BatchPass, layout: PooledLayout, unique: int, *, bucket: int) -> str:
    key = int(batch_pass.plan.unique_ids[unique])
    if batch_pass.pooled is None:  # folded from several passes: the example is unknown
        slot, where = _slot_of(layout, int(batch_pass.plan.tables[unique]), key, bucket), ""
    else:
        place, example = _place_of(
            batch_pass.pooled.shape, int(np.flatnonzero(batch_pass.plan.inverse.numpy() == unique)[0])
        )
        slot, where = layout.slots[place], f" in example {example}"
    return (
        f"slot {slot.name!r}: the gradient of id {_user_id(slot, key, bucket)}{where} is not finite; nothing was"
        " applied, and the gradients of this step were dropped: continue with the next batch. Check the loss for NaN,"
        " or give Embeddings nonfinite='skip' to skip such rows, 'apply' to accept them"
    )


def _place_of(shape: BatchShape, position: int) -> tuple[int, int]:
    """Returns the index of the slot, and the example, of a position among the ids of a batch."""
    ends = np.cumsum(shape.sizes)
    place = int(np.searchsorted(ends, position, side="right"))
    return place, shape.example_of(place, position - int(ends[place] - shape.sizes[place]))


def _slot_of(layout: PooledLayout, table: int, key: int, bucket: int) -> PlacedSlot:
    own = [layout.slots[place] for place in layout.slots_of_tables[table]]
    wide = sorted({slot.number for slot in own if slot.wide_index is not None and slot.number is not None})
    number = ids_of_keys(np.array([key]), bucket, wide).slots[0]
    return next((slot for slot in own if slot.number == number), own[0])


def _user_id(slot: PlacedSlot, key: int, bucket: int) -> int:
    if slot.slot.id_layout in {"any", "v2"}:  # the id is the key
        return key
    return int(ids_of_keys(np.array([key]), bucket).ids[0])
