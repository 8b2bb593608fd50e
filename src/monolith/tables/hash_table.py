"""One embedding table: every 64-bit id has a row of its own."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from monolith.errors import InvalidArgumentError
from monolith.tables.arrays import (
    NO_STEP,
    as_type_of,
    finite_scale,
    float_array,
    id_array,
    new_rows,
    optional_step,
    step_number,
    time_array,
)
from monolith.tables.batch import Applied, FoundRows
from monolith.tables.local.plan import LocalPlan
from monolith.tables.local.store import LocalStore
from monolith.tables.local.whole_group import (
    PER_ID,
    PER_UNIQUE_ID,
    DirectUpdate,
    WholeGroup,
    apply_directly,
    gradient_rows,
    parse_combiner,
    split_array,
)
from monolith.tables.slot_keys import slots_of_keys

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from monolith import _core
    from monolith.tables.arrays import Floats, Ids, Times
    from monolith.tables.history import ChangePosition
    from monolith.tables.local.native_tables import LearningRates
    from monolith.tables.local.whole_group import Combiner
    from monolith.tables.table_config import TableConfig


FEWEST_IDS = 4096
"""Below this a plan costs less than remembering it."""


class RecentBatch(threading.local):
    """Predicts for a lookup whether an update of the same ids will follow, from the thread's previous calls.

    A lookup alone is fastest without a plan; a lookup and an update are fastest with one plan for both. Most threads do
    always the one or always the other, so what came last is what is expected next.
    """

    def __init__(self) -> None:
        self._is_training = False
        self._looked_up: int | None = None
        """Identity of the object with the ids of the last lookup."""
        self._plan: _core.Plan | None = None
        """Plan of the last lookup, until an update takes it."""

    def expects_update(self, ids_object: object) -> bool:
        """Returns whether a lookup of the ids in this object should make a plan and `keep` it."""
        if self._plan is not None:
            self._plan, self._is_training = None, False
        self._looked_up = id(ids_object)
        return self._is_training

    def keep(self, plan: _core.Plan) -> None:
        """Keeps a plan for the update that follows."""
        self._plan = plan

    def take_plan(self, ids_object: object, ids: NDArray[np.int64]) -> _core.Plan | None:
        """Returns the plan of these ids, given as this object, if they were looked up last; each plan is returned once.

        The caller may have changed the ids meanwhile, so they are compared with the plan.
        """
        plan, self._plan = self._plan, None
        if plan is None:
            self._is_training = self._looked_up == id(ids_object)
            return None
        self._is_training = plan.is_of(ids)
        return plan if self._is_training else None


Per = Literal["unique", "id"]


def _layout(per: Per, subject: str) -> int:
    layouts = {"id": PER_ID, "unique": PER_UNIQUE_ID}
    if per not in layouts:
        raise ValueError(f"{subject}: per must be 'unique' or 'id', got {per!r}")
    return layouts[per]


class HashTable(WholeGroup):
    """A table that maps any int64 to a row of float32 weights, grows as ids come and removes expired rows.

    ``ids`` are int64 of any shape: torch CPU tensors or NumPy arrays, without a copy when contiguous, or lists. Results
    are of the kind of ``ids`` (torch for lists). Thread-safe: calls may run concurrently; the change of one id is
    atomic, a batch is not. A rejected call leaves the table unchanged. ``time`` is Unix seconds, one or per id; None
    means now. Times more than a day ahead of the newest before are set back: one call moves the clock by which rows
    expire by a day at most.

    >>> import torch
    >>> from monolith.tables import HashTable, Segment, TableConfig, row_optimizers
    >>> table = HashTable(TableConfig([Segment(2, optimizer=row_optimizers.Sgd(learning_rate=0.5))], name="user"))
    >>> ids = torch.tensor([7, 7, 8])
    >>> table.apply_gradients(ids, torch.ones(3, 2)).inserted
    2
    >>> table.lookup(torch.tensor([7, 8, 9]))  # the gradients of id 7 were summed; id 9 was never seen
    tensor([[-1.0000, -1.0000],
            [-0.5000, -0.5000],
            [ 0.0000,  0.0000]])
    """

    def __init__(self, config: TableConfig) -> None:
        self._bind(LocalStore({config.name: config}), 0)

    @classmethod
    def of_store(cls, store: LocalStore, number: int) -> HashTable:
        """Returns the table of this number in a store: the same rows, not a copy."""
        table = cls.__new__(cls)
        table._bind(store, number)  # noqa: SLF001 - of its own class
        return table

    def _bind(self, store: LocalStore, number: int) -> None:
        self.store = store
        self.native = native = store.native
        self.config = native.configs[number]
        self.name = self.config.name
        self.dim = native.dims[number]
        self._number = number
        self._owns_group = len(native) == 1
        self._core = native.core
        self._clock = native.event_clock
        self._subject = native.subjects[number]
        self._recent = RecentBatch()
        self._state_bytes = 0 if self.config.serving else native.core.state_bytes(number)

    # Reading

    def lookup(self, ids: Ids, *, step: int = 0) -> Any:
        """Returns float32, shape of ids + [dim]. An id without a row reads zeros; nothing is inserted."""
        array = id_array(ids, self._subject)
        flat, number = array.reshape(-1), step_number(step, self._subject)
        values = new_rows((*array.shape, self.dim))
        splits = self.native.splits_for(self._number, array.size)
        if flat.size < FEWEST_IDS or not self._recent.expects_update(ids):
            self._core.lookup(flat, splits, values.reshape(-1), number)
            return as_type_of(values, ids)
        plan = self._core.plan_table(self._number, flat, True)
        rows = new_rows((plan.num_unique * self.dim,))
        self._core.read(plan, rows, number)
        plan.spread(self.dim, rows, values.reshape(-1))
        self._recent.keep(plan)
        return as_type_of(values, ids)

    def lookup_rows(self, ids: Ids) -> FoundRows:
        """Returns everything stored for the ids: weights, optimizer state and time."""
        array = id_array(ids, self._subject)
        shape = array.shape
        weights = new_rows((*shape, self.dim))
        state = np.empty((*shape, self._state_bytes), np.uint8)
        times = np.empty(shape, np.int64)
        is_found = np.empty(shape, np.uint8)
        self._core.lookup_rows(
            self._number,
            array.reshape(-1),
            weights.reshape(-1),
            state.reshape(-1),
            times.reshape(-1),
            is_found.reshape(-1),
        )
        parts = (is_found.view(np.bool_), weights, state, times)
        return FoundRows(*(as_type_of(part, ids) for part in parts))

    def lookup_pooled(self, ids: Ids, row_splits: Ids, combiner: Combiner = "sum", *, step: int = 0) -> Any:
        """Combines the rows of each example in one pass: [B, dim], or [B, n, dim] for ("first_n", n).

        ``row_splits`` int64 [B + 1] holds where each example starts in the flat ``ids``. Empty examples give zeros.
        """
        array = id_array(ids, self._subject).reshape(-1)
        splits = split_array(row_splits, array.size, self._subject)
        pooling = parse_combiner(combiner, self._subject)
        values = new_rows(pooling.shape(len(splits) - 1, self.dim))
        self._core.lookup_pooled(
            self._number,
            array,
            splits,
            pooling.mode,
            pooling.first_n,
            values.reshape(-1),
            step_number(step, self._subject),
        )
        return as_type_of(values, ids)

    def contains(self, ids: Ids) -> Any:
        """Returns bool, shape of ids: true where the id has a row."""
        array = id_array(ids, self._subject)
        is_found = np.empty(array.shape, np.uint8)
        self._core.contains(self._number, array.reshape(-1), is_found.reshape(-1))
        return as_type_of(is_found.view(np.bool_), ids)

    # Writing

    def assign(self, ids: Ids, rows: Floats, *, time: Times = None) -> None:
        """Overwrites weights, keeps optimizer state, inserts ids that admission accepts. The last duplicate wins."""
        self._assign(ids, rows, time, add=False)

    def assign_add(self, ids: Ids, rows: Floats, *, time: Times = None) -> None:
        """Adds to weights; new ids start from the initializer, duplicates add up."""
        self._assign(ids, rows, time, add=True)

    def apply_gradients(
        self,
        ids: Ids,
        grads: Floats,
        *,
        step: int | None = None,
        time: Times = None,
        learning_rates: LearningRates | None = None,
        dedup: bool = True,
        latest: Floats | None = None,
    ) -> Applied:
        """Makes one optimizer step for every id; ``grads`` has the shape of ids + [dim].

        Args:
            ids: Duplicates are summed first, in input order.
            grads: Gradients of the looked-up rows.
            step: Global step, >= 0, for schedules and step-dependent rules; None: 0, and a probabilistic filter draws
                again at every offer of an id.
            time: When the ids were seen; expiry counts from it.
            learning_rates: One per segment; None: the rates of the segments' optimizers for this step.
            dedup: False makes one step per occurrence, in input order, and counts admission so.
            latest: The rows as the worker saw them, for delay compensation; shape of ``grads``.
        """
        subject = self._subject
        array = id_array(ids, subject)
        shape = (*array.shape, self.dim)
        gradients = float_array(grads, shape, subject, "grads").reshape(-1)
        seen = None if latest is None else float_array(latest, shape, subject, "latest").reshape(-1)
        times = time_array(time, array.shape, subject)
        number = optional_step(step, subject)
        rates = self._rates(learning_rates, number)
        flat = array.reshape(-1)
        plan = self._recent.take_plan(ids, flat) if dedup and flat.size >= FEWEST_IDS else None
        if plan is None:
            plan = self._core.plan_table(self._number, flat, dedup)
        return apply_directly(self.native, plan, DirectUpdate(gradients, PER_ID, rates, number, times, latest=seen))

    def apply_pooled_gradients(
        self,
        ids: Ids,
        row_splits: Ids,
        grads: Floats,
        combiner: Combiner = "sum",
        *,
        step: int | None = None,
        time: Times = None,
        learning_rates: LearningRates | None = None,
    ) -> Applied:
        """Applies the gradient of `lookup_pooled`: one optimizer step for every id that took part.

        ``grads`` has the shape of the pooled result and is never expanded to one row per id.
        """
        subject = self._subject
        array = id_array(ids, subject).reshape(-1)
        splits = split_array(row_splits, array.size, subject)
        pooling = parse_combiner(combiner, subject)
        shape = pooling.shape(len(splits) - 1, self.dim)
        gradients = float_array(grads, shape, subject, "grads").reshape(-1)
        times = time_array(time, array.shape, subject)
        number = optional_step(step, subject)
        rates = self._rates(learning_rates, number)
        taking = gradient_rows(pooling, splits)
        if taking.kept is not None:
            array = array[taking.kept]
            times = times if len(times) == 1 else times[taking.kept]
        if array.size == 0:
            return Applied()
        plan = self._core.plan_table(self._number, array, True)
        pooled = (taking.rows, taking.scales)
        return apply_directly(self.native, plan, DirectUpdate(gradients, PER_ID, rates, number, times, pooled))

    def reinitialize(self, ids: Ids, *, time: Times = None) -> Any:
        """Resets rows to their initial state; inserts absent ids without admission.

        Returns:
            int8, shape of ids: 1 where the id had a row, 0 where it was inserted.
        """
        array = id_array(ids, self._subject)
        status = np.empty(array.shape, np.int8)
        bounded = self._clock.bounded(time_array(time, (), self._subject))
        self._core.reinitialize(self._number, array.reshape(-1), int(bounded.times[0]), status.reshape(-1))
        self._clock.count(bounded)
        return as_type_of(status, ids)

    def erase(self, ids: Ids) -> int:
        """Removes rows and their admission counts; returns the number of rows removed.

        Every id leaves a tombstone, so that followers of the table drop its row.

        Raises:
            InvalidArgumentError: an id that cannot be a key of the table, which slots share; names it.
        """
        keys = id_array(ids, self._subject).reshape(-1)
        self._require_keys(keys)
        return self._core.erase(self._number, keys)

    # Plans: group the ids of a batch once, for the lookup and for the update

    def plan(self, ids: Ids, *, dedup: bool = True) -> LocalPlan:
        """Returns the distinct ids of a batch, for `read` and `apply`. Touches no row."""
        array = id_array(ids, self._subject).reshape(-1)
        splits = self.native.splits_for(self._number, array.size)
        return LocalPlan(self.native, self._core.plan(array, splits, dedup), splits, like=ids)

    def read(self, plan: LocalPlan, *, per: Per = "unique", step: int = 0) -> Any:
        """Returns rows of the plan: float32 [U, dim] of its distinct ids; [n, dim] of its input with ``per="id"``."""
        layout = _layout(per, self._subject)
        values = new_rows((len(plan), self.dim))
        self._core.read(plan.core, values.reshape(-1), step_number(step, self._subject))
        if layout == PER_UNIQUE_ID:
            return as_type_of(values, plan.like)
        spread = new_rows((plan.core.num_ids, self.dim))
        plan.core.spread(self.dim, values.reshape(-1), spread.reshape(-1))
        return as_type_of(spread, plan.like)

    def apply(
        self,
        plan: LocalPlan,
        grads: Floats,
        *,
        per: Per = "unique",
        step: int | None = None,
        time: Times = None,
        learning_rates: LearningRates | None = None,
        scale: float = 1.0,
    ) -> Applied:
        """Makes one optimizer step.

        Args:
            plan: Of this table; best the one that was read, which has cached the locations of the rows.
            grads: [U, dim], already summed, in the order of the plan's distinct ids; with ``per="id"`` [n, dim], in the
                order of its input, to be summed here.
            per: What the rows of ``grads`` belong to.
            step: Global step, >= 0; None as in `apply_gradients`.
            time: When the ids were seen.
            learning_rates: One per segment; None: the rates of the segments' optimizers for this step.
            scale: Factor of the summed gradients, for joint clipping.
        """
        subject = self._subject
        layout = _layout(per, subject)
        num_rows = len(plan) if layout == PER_UNIQUE_ID else plan.core.num_ids
        gradients = float_array(grads, (num_rows, self.dim), subject, "grads").reshape(-1)
        times = time_array(time, (plan.core.num_ids,), subject)
        number = optional_step(step, subject)
        rates = self._rates(learning_rates, number)
        update = DirectUpdate(gradients, layout, rates, number, times, scale=finite_scale(scale, subject))
        return apply_directly(self.native, plan.core, update)

    # All rows

    def evict(self, now: int | None = None) -> int:
        """Removes rows that have expired at ``now`` (None: the table's newest time); returns their number."""
        reference = -1 if now is None else int(time_array(now, (), self._subject)[0])
        return self._core.evict(self._number, reference)

    def clear(self) -> None:
        """Removes every row, and the admission counts of the group when it has one table."""
        if self._owns_group:
            self._core.clear()
        else:
            self._core.erase(self._number, self._core.ids(self._number))

    def ids(self) -> Tensor:
        """Returns int64 [len]: every id with a row, in no particular order."""
        return torch.from_numpy(self._core.ids(self._number))

    def touch(self, ids: Ids) -> None:
        """Marks the rows of these ids as changed and absent ids as removed; weights and times stay."""
        self._core.touch(self._number, id_array(ids, self._subject).reshape(-1))

    def tombstones(self, since: ChangePosition | None = None) -> Tensor:
        """Returns int64: ids removed after a mark (None: since recording began) and not inserted again, each once.

        Removals are recorded while the table has a follower: from the first `mark`, `cut` or reader on.
        """
        removed = np.unique(self._core.tombstones(self._number, self._epoch(since)))
        return torch.from_numpy(removed[~self.contains(removed)])

    @property
    def newest_time(self) -> int:
        """The newest time of any update, Unix seconds; 0 before the first."""
        return self._core.newest_time(self._number)

    def stats(self) -> dict[str, int | float]:
        """Returns statistics of this table.

        ``rows``; ``evicted`` (removed by expiry or cap so far); ``tombstones``; memory as ``row_bytes``,
        ``index_bytes`` and ``other_bytes``; ``overhead_per_id`` (bytes beyond weights and state); ``index_load``
        (entries per place).
        """
        return self._core.stats(self._number)

    def __len__(self) -> int:
        return self._core.size(self._number)

    def __contains__(self, key: int) -> bool:
        return bool(self.contains(np.array([key], np.int64))[0])

    def __repr__(self) -> str:
        return f"HashTable(name={self.name!r}, dim={self.dim}, rows={len(self)})"

    def _require_keys(self, keys: NDArray[np.int64]) -> None:
        """Raises if slots share the table and a key carries the number of none of them."""
        wide_slots = self.native.schema.tables[self._number].wide_slots
        if not wide_slots:
            return
        slots = slots_of_keys(keys, wide_slots)
        if np.isin(slots, wide_slots).all():
            return
        known = sorted({*wide_slots, *self._core.rows_by_slot(self._number)})
        foreign = ~np.isin(slots, known)
        if foreign.any():
            raise InvalidArgumentError(
                f"{self._subject}: {keys[foreign][0]} is no key of this table: it would be of slot {slots[foreign][0]},"
                f" and the table has slots {known}; erase ids of a slot by Embeddings.erase(slot, ids)"
            )

    def _rates(self, learning_rates: LearningRates | None, step: int | None) -> NDArray[np.float32]:
        return self.native.rates({self._number: learning_rates}, step or 0)

    def _assign(self, ids: Ids, rows: Floats, time: Times, *, add: bool) -> None:
        array = id_array(ids, self._subject)
        values = float_array(rows, (*array.shape, self.dim), self._subject, "rows")
        bounded = self._clock.bounded(time_array(time, array.shape, self._subject))
        self._core.assign(self._number, array.reshape(-1), values.reshape(-1), bounded.times, add, NO_STEP)
        self._clock.count(bounded)
