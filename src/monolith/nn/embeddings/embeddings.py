"""Embeddings of all slots of a model: looked up together, trained together.

Dims: B examples, W floats of all outputs of an example.

The lifecycle of a batch::

    x = emb(batch)              one plan, one read of the distinct rows, one buffer [B, W]; x["user"] is a view of it
    loss.backward()             one node collects the gradients of all outputs and adds them up by row
    emb.step()                  one optimizer step for every distinct id, at the store
"""

from __future__ import annotations

import math
import time as clock
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.nn.embeddings.batch_context import current_batch_context
from monolith.nn.embeddings.gradient_step import GradientStep, times_of
from monolith.nn.embeddings.id_batch import IdBatchReader
from monolith.nn.embeddings.merge import merge_slots, place_slots
from monolith.nn.embeddings.passes import ACCUMULATED_PASSES, PlannedBatch
from monolith.nn.embeddings.pooling import (
    EmbeddingOutputs,
    PooledBatch,
    PooledLayout,
    look_up,
    outputs_of,
    to_device,
    uncompiled,
    values_of,
)
from monolith.nn.embeddings.rows_by_slot import RowsBySlot
from monolith.nn.embeddings.rows_optimizer import LearningRates, RowsOptimizer, gradient_norm
from monolith.nn.embeddings.saved_state import require_tables
from monolith.nn.slot import Slot, require_rate
from monolith.nn.table_defaults import current_table_defaults
from monolith.tables import (
    Adagrad,
    BatchStamp,
    CudaStore,
    KernelRows,
    RowOptimizer,
    Segment,
    SlidingHashFilter,
    TableConfig,
    Update,
)
from monolith.tables.local import LocalStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.nn.embeddings.batch_context import BatchContext
    from monolith.nn.embeddings.id_batch import BatchShape, SlotInput
    from monolith.nn.embeddings.merge import PlacedSlot
    from monolith.nn.slot import LearningRate
    from monolith.nn.table_defaults import StoreFactory
    from monolith.tables import AdmissionFilter, Applied, Store


DEFAULT_OPTIMIZER = Adagrad(learning_rate=0.05, initial_accumulator_value=1e-8)
"""Its first steps are of the size of the learning rate whether losses are summed or averaged over the batch."""


class Embeddings(RowsBySlot):
    """The rows of all slots of a model.

    Slots that learn alike share a table, without ever sharing a row (see `tables`). Rows live in a `Store`, not in the
    module: its one parameter stands for all of them (`anchor`), and `deep_copies` selects what a deep copy does with
    them. An id gets its row when it is first trained and reads as zeros until then; evaluation leaves no trace.

    Gradients add up over backward passes until `step`, which makes one optimizer step per id out of them.

    Args:
        slots: Name -> `Slot`; the order is that of the outputs.
        optimizer: Of all slots that name none; Adagrad by default.
        learning_rate: Instead of that optimizer's own: a number, or a function of the global step.
        store: An engine (`LocalStore`: rows in this process) or a store that has these tables already; None: the
            runner's (`use_table_defaults`), else a `LocalStore`.
        device: In place of `store`: where the rows are, ``"cuda"`` or ``"cuda:N"`` (a `CudaStore`: the memory of a GPU)
            or ``"cpu"`` (a `LocalStore`). The module is made there, too; `to` moves its outputs, the rows stay. The
            store of a runner (`use_table_defaults`), such as of servers, comes before it.
        seed: Of the first weights of rows, and of everything else that is drawn at random.
        nonfinite: What to do with a NaN or infinite gradient: reject the step, skip the row, or apply the gradient.
        admission: How occurrences are counted where a slot has a `min_count`; None: the runner's
            (`use_table_defaults`), else a `SlidingHashFilter`.
        rows_in_state_dict: Whether `state_dict()` holds the rows, with optimizer state and admission counts. False: it
            holds the dense weights only, and the rows must be saved by `ml.save` or by a checkpoint.
        accumulated_passes: Calls of `backward()` before each step, at most; one more without a step gives a warning.
        evict_every_seconds: Event time within which steps scan every row once and remove those whose slot's
            `expire_days` have passed; 0: only `evict` does. None: the runner's, else an hour for each day of a
            table's shortest `expire_days`.

    >>> from monolith.nn import Slot
    >>> emb = Embeddings({"user": Slot(dim=16), "item": Slot(dim=16), "tags": Slot(dim=4, combiner="mean")})
    >>> x = emb({"user": torch.tensor([7, 8]), "item": torch.tensor([5, 5]), "tags": torch.tensor([[1, 2], [3, 3]])})
    >>> x["tags"].shape, x.concat().shape
    (torch.Size([2, 4]), torch.Size([2, 36]))
    >>> x.concat().sum().backward()
    >>> emb.step().inserted  # two users, an item, three tags
    6
    """

    def __init__(  # noqa: PLR0913 - what all slots have in common; all by name
        self,
        slots: Mapping[str, Slot],
        optimizer: RowOptimizer = DEFAULT_OPTIMIZER,
        *,
        learning_rate: LearningRate | None = None,
        store: Store | StoreFactory | None = None,
        device: torch.device | str | None = None,
        seed: int = 0,
        nonfinite: Literal["raise", "skip", "apply"] = "raise",
        admission: AdmissionFilter | None = None,
        rows_in_state_dict: bool = True,
        accumulated_passes: int = ACCUMULATED_PASSES,
        evict_every_seconds: float | None = None,
    ) -> None:
        check_arguments(slots, optimizer, learning_rate)
        if device is not None:
            store = _store_on(device, store)
        merged = merge_slots(slots, optimizer=optimizer, learning_rate=learning_rate)
        merged.sort(key=lambda table: table.name)
        defaults = table_defaults(admission, seed=seed, nonfinite=nonfinite, evict_every_seconds=evict_every_seconds)
        configs = {table.name: table.config(defaults) for table in merged}
        super().__init__(
            store_of(store, configs),
            place_slots(slots, merged),
            latest_dims=[config.dim if config.uses_latest else 0 for config in configs.values()],
            empty_store=partial(store_factory(store), configs),
            rows_in_state_dict=rows_in_state_dict,
            accumulated_passes=accumulated_passes,
        )
        require_tables(self.store.schema, configs, merged)
        self._configs = configs
        names = list(configs)
        flat = sorted(self._placed.values(), key=lambda slot: names.index(slot.table))
        self._reader = IdBatchReader(flat, names)
        self._layout = PooledLayout(flat, names, [config.dim for config in configs.values()])
        self._rates = LearningRates(merged)
        self._takes_finite_only = any(config.nonfinite == "raise" for config in configs.values())
        self._uses_latest = [config.uses_latest for config in configs.values()]
        # It holds nothing and is not saved: it moves with the model, and the outputs are on its device.
        self._place: Tensor
        self.register_buffer("_place", torch.empty(0), persistent=False)
        if device is not None:
            self.to(device)

    def learning_rates(self) -> dict[str, list[float]]:
        """Returns table -> the learning rate of each of its segments in the last step; before any, in step 0."""
        rates = self._rates.numbers(max(0, self.global_step - 1))
        return {table: [rates.pop(0) for _ in config.segments] for table, config in self._configs.items()}

    # Looking up

    @uncompiled
    def forward(
        self,
        batch: Mapping[str, SlotInput] | PlannedBatch,
        *,
        time: int | Tensor | None = None,
        stamp: BatchStamp | None = None,
    ) -> EmbeddingOutputs:
        """Looks up the outputs of all slots.

        In training mode the outputs are differentiable; in evaluation mode, and under ``torch.no_grad()``, the batch
        leaves no trace at the store.

        Args:
            batch: Slot name -> ids: a `Ragged`, int64 [B] (one id per example) or int64 [B, k]. Other names are
                ignored. Or what `plan` made of it.
            time: When the examples were seen, Unix seconds: one number or int64 [B]; expiry counts from it. None: the
                time of the step.
            stamp: Which batch it is; for runs that resume from a checkpoint. None: batches are counted.

        Raises:
            InvalidArgumentError: names the slot whose ids are missing, malformed or of another number of examples.
        """
        if not isinstance(batch, PlannedBatch):
            batch_context = current_batch_context()
            if batch_context is not None and batch_context.lookup_override is not None:
                return batch_context.lookup_override(self, batch)
            batch = self._planned(batch_context, batch, time, stamp)
        elif time is not None or stamp is not None:
            raise TypeError("forward: time and stamp belong to the plan of a planned batch; give them to plan()")
        anchor = self.anchor
        if not (self.training and torch.is_grad_enabled() and anchor.requires_grad):
            self.drop(batch)
            buffer = self._pool(batch, self._worker.read(batch.plan, train=False))
            return self._looked_up(buffer, outputs_of(buffer, self._layout))
        if self._registry.anchor is not anchor:
            self._registry.watch(anchor)
        self._registry.require_unused(batch)
        values = self._rows_to_train(batch)
        latest = self._latest(batch, values)
        end = self._registry.open(batch, values.device, latest)  # from here on the registry ends the batch
        whole, *outputs = look_up(anchor, self._pool(batch, values), self._layout, end)
        return self._looked_up(whole, outputs)

    def plan(
        self,
        batch: Mapping[str, SlotInput],
        *,
        time: int | Tensor | None = None,
        stamp: BatchStamp | None = None,
    ) -> PlannedBatch:
        """Checks the ids of a batch and finds the distinct ones, ahead of its forward pass. Reads no row.

        A loader may call it in a thread of its own and pass the result to the module instead of the batch.
        """
        read = self._reader.read(batch)
        plan = self.store.plan(
            read.key_tensor,
            read.table_splits,
            stamp=self._worker.new_stamp(train=self.training) if stamp is None else stamp,
            buckets=read.bucket_tensor,
        )
        times = _times_per_id(time, read.shape)
        rows = self.store if isinstance(self.store, KernelRows) else None
        pooled = PooledBatch(self._layout, plan, read.shape, rows)
        return PlannedBatch(plan, read.shape, pooled, times, is_replayable=stamp is not None)

    def read_ahead(self, batch: PlannedBatch) -> None:
        """Reads the rows of a planned batch as they are now, for the forward pass in training that comes later.

        That pass sees no update that was made in between. Every batch read ahead ends in a forward pass or in `drop`.
        Where rows live in other processes, this only begins to read, and the forward pass waits for what is missing.
        """
        batch.rows = self._worker.begin_read(batch.plan, train=True)

    def drop(self, batch: PlannedBatch) -> None:
        """Discards rows that were read ahead; the read may still be in flight."""
        if batch.rows is not None:
            batch.rows = None
            self._worker.discard(batch.plan)

    @torch.no_grad()
    def lookup(self, name: str, ids: Tensor) -> Tensor:
        """Returns rows of one slot, uncombined: float32, shape of ids + [dim]. Ids without a row read zeros."""
        placed = _unpadded(self._placed_slot(name))
        read = IdBatchReader([placed], [placed.table]).read({name: ids.reshape(-1)})
        splits = np.zeros(len(self.store.schema.tables) + 1, np.int64)
        splits[self.store.schema.names.index(placed.table) + 1 :] = len(read.ids)
        stamp = self._worker.new_stamp(train=False)
        plan = self.store.plan(read.key_tensor, torch.from_numpy(splits), stamp=stamp, buckets=read.bucket_tensor)
        rows = self._worker.read(plan, train=False).view(-1, placed.dim)
        return rows.index_select(0, plan.inverse.to(rows.device)).view(*ids.shape, placed.dim)

    # Learning

    def step(self, *, scale: float | Tensor = 1.0, global_step: int | None = None) -> Applied:
        """Makes one optimizer step for every id of the backward passes since the last step.

        Args:
            scale: Factor of all gradients, such as a clip factor made with `grad_norm`.
            global_step: For schedules and step-dependent rules; None counts the calls.

        Returns:
            The numbers of rows updated, inserted and filtered.

        Raises:
            FailedPreconditionError: there was no backward pass.
            InvalidArgumentError: a gradient is not finite: no row changed, and the gradients are dropped, so that the
                next batch can be trained. Or the scale is not finite: they are kept for the next `step` or `discard`.
        """
        taken = self.take_step(scale=scale, global_step=global_step)
        if taken is None:
            raise FailedPreconditionError(f"step: {self._why_no_gradients()}")
        return taken.apply()

    def take_step(
        self, *, scale: float | Tensor = 1.0, global_step: int | None = None, rate_factor: float = 1.0
    ) -> GradientStep | None:
        """Returns the update of `step`, to be applied later and by any thread; None if there was no backward pass.

        Meanwhile the module can look up the next batch, which does not see this step. Apply a step, or begin to, before
        you take the next. `rate_factor` multiplies all learning rates.
        """
        passes = self._registry.ready()
        if not passes:
            return None
        self._registry.row_gradient.scale(passes)
        number = self._worker.global_step if global_step is None else global_step
        latest = [batch_pass.latest for batch_pass in passes if batch_pass.latest is not None]
        rule = partial(
            Update,
            step=number,
            learning_rates=self._rates.at(number) if rate_factor == 1 else self._rates.at(number) * rate_factor,
            times=times_of(passes, int(clock.time())),
            scale=_finite(scale),
            known_finite=all(batch_pass.is_finite for batch_pass in passes),
            latest=latest if len(latest) == len(passes) else None,
        )
        return GradientStep(
            self._worker,
            self._registry,
            passes,
            rule,
            self._layout,
            takes_finite_only=self._takes_finite_only,
        )

    def optimizer(self, beside: torch.optim.Optimizer | None = None) -> RowsOptimizer:
        """Returns `step` and `zero_grad` as an optimizer of torch, for loops, trainers and gradient scalers of torch.

        Args:
            beside: The dense optimizer, where a trainer takes only one: it is stepped and cleared together with the
                rows.
        """
        return RowsOptimizer(self, beside)

    def grad_norm(self) -> Tensor:
        """Returns the L2 norm of the gradients of the next `step`, over all rows; 0 without a backward pass.

        Together with the norm of the dense gradients it makes a joint clip factor.
        """
        passes = self._registry.ready()
        return gradient_norm(passes, self.store.schema) * self.row_gradient.factor() if passes else torch.zeros(())

    def discard(self) -> int:
        """Drops the gradients since the last step; returns the number of backward passes they came from."""
        return self._registry.discard()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Calls `discard`, under the name that loops expect; `zero_grad()` of the enclosing model does it, too."""
        self.discard()
        super().zero_grad(set_to_none)

    def extra_repr(self) -> str:
        """Returns one line per slot."""
        lines = [
            f"{name}: dim={placed.dim}, combiner={placed.combiner!r}, table={placed.table!r}"
            for name, placed in self._placed.items()
        ]
        return "\n".join(lines)

    # Inside

    def _planned(
        self,
        batch_context: BatchContext | None,
        batch: Mapping[str, SlotInput],
        time: int | Tensor | None,
        stamp: BatchStamp | None,
    ) -> PlannedBatch:
        """Returns the plan of the current turn for this batch; else a new one, with time and stamp of the turn."""
        if batch_context is None or time is not None or stamp is not None:
            return self.plan(batch, time=time, stamp=stamp)
        return batch_context.take(self, batch) or self.plan(batch, time=batch_context.time, stamp=batch_context.stamp)

    def _rows_to_train(self, batch: PlannedBatch) -> Tensor:
        """Returns the rows of a batch that is trained now, read ahead or not."""
        if batch.rows is None:
            batch.rows = self._worker.begin_read(batch.plan, train=True)
        try:
            values = batch.rows.result().values
        except BaseException:  # an interrupt, too, must not leave the plan open at the store
            self.drop(batch)
            raise
        batch.rows = None
        return values

    def _why_no_gradients(self) -> str:
        if self.num_cleared:
            return (
                f"the gradients of {self.num_cleared} backward passes were cleared by zero_grad() of the model or"
                " of an optimizer that has all its parameters; call emb.step() before it"
            )
        return (
            "there are no gradients since the last step; call backward() on a loss that was computed from the outputs"
            " of this module in training mode"
        )

    def _latest(self, batch: PlannedBatch, values: Tensor) -> Tensor | None:
        """Returns the rows that a pass saw, of tables whose updates need them."""
        if not any(self._uses_latest):
            return None
        return values_of(batch.plan, values, self._layout.dims, self._uses_latest)

    def _pool(self, batch: PlannedBatch, values: Tensor) -> Tensor:
        """Returns the outputs [B, W] on this module's device."""
        device = self._place.device
        outputs = batch.pooled.pool(values, pinned=device.type == "cuda")
        return outputs if outputs.device == device else to_device(outputs, device)

    def _looked_up(self, buffer: Tensor, outputs: list[Tensor]) -> EmbeddingOutputs:
        return EmbeddingOutputs(dict(zip(self._placed, outputs, strict=True)), buffer)


def _unpadded(placed: PlacedSlot) -> PlacedSlot:
    """Returns the slot without padding, for lookups of every id: padding, which is never trained, reads as zeros."""
    return replace(placed, slot=replace(placed.slot, padding_id=None))


def _finite(scale: float | Tensor) -> float:
    factor = float(scale)
    if not math.isfinite(factor):
        raise InvalidArgumentError(
            f"step: scale must be finite, got {factor}; is a gradient NaN or infinite? The gradients are kept: call"
            " step() with another scale, or discard() to continue without them"
        )
    return factor


def _times_per_id(time: int | Tensor | None, shape: BatchShape) -> int | Tensor | None:
    if not isinstance(time, Tensor) or time.ndim == 0:
        return None if time is None else int(time)
    if time.dtype != torch.int64 or time.shape != (shape.num_examples,):
        raise InvalidArgumentError(
            f"time must be one number or int64 [{shape.num_examples}], one for each example,"
            f" got {time.dtype} {tuple(time.shape)}"
        )
    return torch.from_numpy(shape.spread(time.cpu().numpy()))


def check_arguments(slots: Mapping[str, Slot], optimizer: object, learning_rate: object) -> None:
    """Rejects slots, an optimizer or a learning rate of the wrong kind; the message shows what to write."""
    if not slots:
        raise InvalidArgumentError("Embeddings: at least one slot is needed, got none; write {'user': Slot(dim=16)}")
    for name, slot in slots.items():
        if not name or not isinstance(name, str):
            raise TypeError(f"Embeddings: names of slots must be non-empty texts, got {name!r}")
        if not isinstance(slot, Slot):
            raise TypeError(f"slot {name!r}: expected Slot(...), got {slot!r}; write Slot(dim=16)")
    if not isinstance(optimizer, RowOptimizer):
        raise TypeError(
            f"Embeddings: optimizer must be one of monolith.row_optimizers, got {optimizer!r}; torch's optimizers are"
            " for dense parameters"
        )
    if learning_rate is not None:
        require_rate(learning_rate, "Embeddings")


def table_defaults(
    admission: AdmissionFilter | None,
    *,
    seed: int,
    nonfinite: Literal["raise", "skip", "apply"],
    evict_every_seconds: float | None,
) -> TableConfig:
    """Returns the common settings of all tables: those of the module, then those of the runner."""
    defaults = current_table_defaults()
    config = TableConfig(
        [Segment(1)],
        seed=seed,
        nonfinite=nonfinite,
        admission=admission or defaults.admission or SlidingHashFilter(),
        evict_every_seconds=defaults.evict_every_seconds if evict_every_seconds is None else evict_every_seconds,
    )
    return config if defaults.initial_capacity is None else replace(config, initial_capacity=defaults.initial_capacity)


def _store_on(device: torch.device | str, store: object) -> StoreFactory:
    """Returns what makes a store with its rows on a device, unless the runner makes another one."""
    if store is not None:
        raise InvalidArgumentError(
            f"Embeddings: device={str(device)!r} makes a store, but store={store!r} was given, too; leave one of them"
            " out, or write store=functools.partial(CudaStore, device=...)"
        )
    kind = str(device).partition(":")[0]  # before torch, whose error lists devices that are none here
    if kind not in {"cuda", "cpu"}:
        raise InvalidArgumentError(f"Embeddings: device must be 'cuda', 'cuda:N' or 'cpu', got {str(device)!r}")
    chosen = torch.device(device)
    of_runner = current_table_defaults().store
    if of_runner is not None:
        return of_runner
    return LocalStore if chosen.type == "cpu" else partial(CudaStore, device=chosen)


def store_of(store: Store | StoreFactory | None, configs: Mapping[str, TableConfig]) -> Store:
    """Returns the store that was given, or makes one for these tables."""
    if _is_store(store):
        return store  # type: ignore[return-value]  # it has a plan(): a store
    return store_factory(store)(configs)


def store_factory(store: Store | StoreFactory | None) -> StoreFactory:
    """Returns a function that makes stores like this one; a `LocalStore` where a finished store was given."""
    if store is None:
        return current_table_defaults().store or LocalStore
    if _is_store(store):
        return LocalStore
    if not callable(store):
        raise TypeError(f"Embeddings: store must be a Store or make one from table configs, got {store!r}")
    return store


def _is_store(store: Store | StoreFactory | None) -> bool:
    """Returns whether this is a store; a class of stores has the same attributes, so it is excluded first."""
    return store is not None and not isinstance(store, type) and hasattr(store, "plan")
