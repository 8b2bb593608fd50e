"""Trainable layouts: apply the gradients of their outputs to the rows.

Gradients of an output: SUM copies the gradient to every id, MEAN divides it by their number, a sequence passes position
j to id j. The gradient of a list that all examples share is summed over them, in order. Rows that occur several times
get the sum, in the order of the features and of their ids, so results do not depend on threads::

    trained = TrainedLayout(layout)
    inputs = trained.from_bytes(data, "example_batch").inputs
    model(inputs).backward()
    trained.step()
"""

from __future__ import annotations

import time as clock
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from monolith.errors import FailedPreconditionError
from monolith.serving.layout._row_gradients import StoreBatch, feature_gradients
from monolith.tables.batch import BatchStamp, Update

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from monolith.serving.layout.layout import LaidOut, Layout, SampleForm
    from monolith.tables.batch import Applied


class TrainedLayout:
    """A layout over training rows whose outputs are differentiable. Not thread-safe.

    Args:
        layout: Its stores must hold training rows.
        worker: Number of this worker at the stores; unique for each worker.

    Raises:
        InvalidArgumentError: the number is negative.
    """

    def __init__(self, layout: Layout, *, worker: int = 0) -> None:
        self.layout = layout
        self.global_step = 0
        self._joined = {name: store.join(worker) for name, store in layout.stores.items()}
        self._anchor = torch.zeros((), requires_grad=True)
        self._passes: list[tuple[StoreBatch, Tensor]] = []

    def from_bytes(self, data: bytes | Sequence[bytes], form: SampleForm) -> LaidOut:
        """Converts samples like `Layout.from_bytes`; the pooled rows are differentiable."""
        laid_out = self.layout.from_bytes(data, form, step=self.global_step)
        return self._differentiable(laid_out, self.layout.keys_of_bytes(data, form))

    def from_columns(self, columns: Mapping[str, object]) -> LaidOut:
        """Converts columns like `Layout.from_columns`; the pooled rows are differentiable."""
        laid_out = self.layout.from_columns(columns, step=self.global_step)
        return self._differentiable(laid_out, self.layout.keys_of_columns(columns))

    def step(self, *, time: int | None = None) -> dict[str, Applied]:
        """Applies one optimizer step to all ids of the backward passes since the last step, at the tables' rates.

        Args:
            time: When the examples were seen, Unix seconds; None: now.

        Returns:
            Store -> number of its rows that were updated or created.

        Raises:
            FailedPreconditionError: there was no backward pass.
            InvalidArgumentError: a gradient is not finite, and a table rejects those; its store is unchanged.
        """
        if not self._passes:
            raise FailedPreconditionError("step: there was no backward pass since the last one")
        passes, self._passes = self._passes, []
        moment = int(clock.time()) if time is None else time
        applied: dict[str, Applied] = {}
        for name, joined in self._joined.items():
            updates = [(batch.plan, gradient) for batch, gradient in passes if batch.store == name]
            native = self.layout.stores[name].native
            rates = native.rates(dict.fromkeys(range(len(native)), None), self.global_step)
            rule = Update(
                previous=joined.next_seq - 1,
                step=self.global_step,
                learning_rates=torch.from_numpy(rates),
                times=moment,
            )
            if updates:
                applied[name] = joined.apply(updates, rule).result()
                joined.next_seq += len(updates)
        self.global_step += 1
        return applied

    def _differentiable(self, laid_out: LaidOut, keys: Sequence[tuple[NDArray[Any], ...]]) -> LaidOut:
        names = [output.name for output in self.layout.outputs]
        looked_up = [laid_out.inputs[name] for name in names]
        outputs = _Lookup.apply(self._anchor, self, laid_out.num_examples, keys, *looked_up)  # type: ignore[no-untyped-call]
        inputs = laid_out.inputs | dict(zip(names, cast("tuple[Tensor, ...]", outputs), strict=True))
        return laid_out._replace(inputs=inputs)

    def take(
        self, num_examples: int, keys: Sequence[tuple[NDArray[Any], ...]], gradients: Sequence[Tensor | None]
    ) -> None:
        """Stores the row gradients of a backward pass; `gradients` are those of the outputs, None for zeros."""
        of_features = feature_gradients(self.layout, num_examples, keys, gradients)
        for name, joined in self._joined.items():
            taken = sum(batch.store == name for batch, _ in self._passes)
            stamp = BatchStamp(worker=joined.worker, seq=joined.next_seq + taken)
            batch = StoreBatch.of(self.layout, name, keys, num_examples, joined, stamp)
            if batch is not None:
                self._passes.append((batch, batch.sum_gradients(of_features)))


class _Lookup(torch.autograd.Function):
    """Autograd function that passes the gradients of looked-up outputs to the rows."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,  # noqa: ARG004 - makes the outputs differentiable
        trained: TrainedLayout,
        num_examples: int,
        keys: Sequence[tuple[NDArray[Any], ...]],
        *outputs: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.trained, ctx.num_examples, ctx.keys = trained, num_examples, keys
        ctx.set_materialize_grads(False)
        return tuple(output.view_as(output) for output in outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.trained.take(ctx.num_examples, ctx.keys, gradients)
        return (torch.zeros(()), None, None, None, *[None] * len(gradients))
