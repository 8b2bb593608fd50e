"""Pooling by kernels, for stores whose rows are where kernels of the core run; the bits are those of the core.

The arrays of a batch are on the device before they are needed, and no call waits for the device.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch

from monolith import _core
from monolith.data.prefetch import SideStreams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from monolith.nn.embeddings.id_batch import BatchShape
    from monolith.nn.embeddings.pooling import PooledLayout
    from monolith.tables import KernelRows, Plan


class DeviceBatch:
    """One batch of a layout: made once, used forward and backward."""

    __slots__ = ("_arrays", "_kernels", "_layout", "_plan", "_row_splits", "_rows", "_shape")

    def __init__(self, layout: PooledLayout, plan: Plan, shape: BatchShape, rows: KernelRows) -> None:
        self._layout = layout
        self._plan = plan
        self._shape = shape
        self._rows = rows
        self._row_splits = side_streams().stage([torch.from_numpy(shape.row_splits)], rows.device)
        self._kernels: _core.DeviceSlotPooling | None = None
        self._arrays: object = None
        """Keeps what the kernels read."""

    def pool(self, values: Tensor) -> Tensor:
        """Returns the outputs of all slots, float32 [B, W], from the rows of the plan, float32 [V]."""
        outputs = values.new_empty(self._shape.num_examples, self._layout.width)
        self._received().pool(stream=self._stream(), values=values.data_ptr(), outputs=outputs.data_ptr())
        return outputs

    def sum_gradients(self, gradients: Tensor | Sequence[Tensor | None]) -> Tensor:
        """Returns the gradient of `values`, from that of all outputs [B, W], or of each slot [B, width] in flat order.

        None stands for zeros.
        """
        kernels, positions = self._received(), self._rows.occurrences(self._plan)
        sums = torch.empty(self._plan.num_values, dtype=torch.float32, device=self._rows.device)
        scratch = torch.empty(kernels.scratch_bytes, dtype=torch.uint8, device=self._rows.device)
        common = {
            "stream": self._stream(),
            "starts": positions.starts.data_ptr(),
            "order": positions.order.data_ptr(),
            "scratch": scratch.data_ptr(),
            "sums": sums.data_ptr(),
        }
        if isinstance(gradients, torch.Tensor):
            whole = _side_by_side(gradients)
            kernels.sum_gradient(outputs=whole.data_ptr(), stride=whole.stride(0), **common)
            return sums
        of_slots = [None if gradient is None else _side_by_side(gradient) for gradient in gradients]
        kernels.sum_gradients(
            rows=[0 if gradient is None else gradient.data_ptr() for gradient in of_slots],
            strides=[0 if gradient is None else gradient.stride(0) for gradient in of_slots],
            **common,
        )
        return sums

    def _stream(self) -> int:
        device = self._rows.device
        return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0

    def _received(self) -> _core.DeviceSlotPooling:
        """Returns the kernels, for launches in the caller's current stream."""
        arrays = self._rows.plan_arrays(self._plan)
        (row_splits,) = self._row_splits.receive()
        if self._kernels is None:
            shape, device = self._shape, self._rows.device
            dims = self._layout.dims_on(device)
            self._arrays = arrays, row_splits, dims
            self._kernels = _core.DeviceSlotPooling(
                self._layout.kernel,
                self._rows.launcher,
                num_examples=shape.num_examples,
                ids_per_example=shape.ids_per_example,
                sizes=shape.sizes,
                row_splits=row_splits.data_ptr(),
                num_ids=len(arrays.inverse),
                num_unique=len(arrays.counts),
                inverse=arrays.inverse.data_ptr(),
                counts=arrays.counts.data_ptr(),
                cells=arrays.cells.data_ptr(),
                offsets=0 if arrays.offsets is None else arrays.offsets.data_ptr(),
                dims=dims.data_ptr(),
            )
        return self._kernels


def _side_by_side(gradient: Tensor) -> Tensor:
    """Returns the floats of each example without gaps; `expand` may have put all floats in one place."""
    return gradient if gradient.stride(1) == 1 or gradient.shape[1] == 1 else gradient.contiguous()


_of_thread = threading.local()


def side_streams() -> SideStreams:
    """Returns the streams of the calling thread for copies that run concurrently with the model."""
    if not hasattr(_of_thread, "streams"):
        _of_thread.streams = SideStreams()
    streams: SideStreams = _of_thread.streams
    return streams
