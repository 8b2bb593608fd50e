"""Many named tables in one call: one plan, one pass, one cut."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.tables.arrays import (
    MAX_IDS,
    array_size,
    as_type_of,
    finite_scale,
    float_array,
    id_array,
    new_rows,
    optional_step,
    step_number,
    time_array,
)
from monolith.tables.hash_table import HashTable
from monolith.tables.local.plan import LocalPlan
from monolith.tables.local.store import LocalStore
from monolith.tables.local.whole_group import PER_ID, PER_UNIQUE_ID, DirectUpdate, WholeGroup, apply_directly

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from monolith.tables.arrays import Floats, Ids, Times
    from monolith.tables.batch import Applied
    from monolith.tables.local.native_tables import LearningRates
    from monolith.tables.local.whole_group import Combiner
    from monolith.tables.store import Store
    from monolith.tables.table_config import TableConfig

_log = logging.getLogger(__name__)


class _Batch(NamedTuple):
    """The ids of a call, end to end in table order."""

    tables: list[int]
    names: list[str]
    arrays: list[NDArray[np.int64]]
    flat: NDArray[np.int64]
    splits: NDArray[np.int64]


class TableGroup(WholeGroup):
    """Named tables that are looked up, updated, cut and saved together.

    Arguments are mappings from table name to what `HashTable` takes; tables not named have no ids in the call. All
    tables of a call are served by one pass over the buckets. ``group["user"]`` is one table, for everything else.

    >>> import torch
    >>> from monolith.tables import Segment, TableConfig, TableGroup
    >>> group = TableGroup({"user": TableConfig([Segment(2)]), "item": TableConfig([Segment(1)])})
    >>> group["item"].assign([5], [[0.5]])
    >>> rows = group.lookup({"user": torch.tensor([[1, 2]]), "item": torch.tensor([5])})
    >>> rows["user"].shape, rows["item"]
    (torch.Size([1, 2, 2]), tensor([[0.5000]]))
    """

    def __init__(self, configs: Mapping[str, TableConfig]) -> None:
        self._bind(LocalStore(configs))

    @classmethod
    def of_store(cls, store: Store) -> TableGroup:
        """Returns the tables of a store, such as that of an `Embeddings`: the same rows, not a copy.

        Raises:
            FailedPreconditionError: the rows are not in one store of this process.
        """
        if not isinstance(store, LocalStore):
            raise FailedPreconditionError(
                f"tables of a store: its rows must be in this process (LocalStore), got {type(store).__name__}; use a"
                " model with a LocalStore, save it, and restore the checkpoint"
            )
        group = cls.__new__(cls)
        group._bind(store)  # noqa: SLF001 - of its own class
        return group

    def _bind(self, store: LocalStore) -> None:
        self.store = store
        self.native = native = store.native
        self.names = native.names
        """Names of the tables, sorted."""
        self._core = native.core
        self._owns_group = True
        self._tables = {name: HashTable.of_store(store, n) for n, name in enumerate(native.names)}

    def __getitem__(self, name: str) -> HashTable:
        return self._tables[self.native.names[self.native.number_of(name)]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.native.names)

    def __contains__(self, name: object) -> bool:
        return name in self._tables

    def __len__(self) -> int:
        return len(self.native)

    # Reading

    def lookup(self, ids: Mapping[str, Ids], *, step: int = 0) -> dict[str, Any]:
        """Returns name -> float32, shape of its ids + [dim]. Ids without a row read zeros."""
        batch = self._batch(ids)
        sizes = [array.size * self.native.dims[table] for table, array in zip(batch.tables, batch.arrays, strict=True)]
        values = new_rows((sum(sizes),))
        self._core.lookup(batch.flat, batch.splits, values, step_number(step, "group"))
        return self._parts(values, batch, ids)

    def lookup_pooled(
        self, ids: Mapping[str, Ids], row_splits: Mapping[str, Ids], combiners: Mapping[str, Combiner], *, step: int = 0
    ) -> dict[str, Any]:
        """Returns name -> the pooled rows of each example, like `HashTable.lookup_pooled`."""
        self._require_same_names(ids, row_splits=row_splits)
        return {
            name: self[name].lookup_pooled(ids[name], row_splits[name], combiners.get(name, "sum"), step=step)
            for name in sorted(ids)
        }

    def plan(self, ids: Mapping[str, Ids], *, dedup: bool = True) -> LocalPlan:
        """Returns the distinct (table, id) pairs of a batch, for `read` and `apply`. Touches no row."""
        batch = self._batch(ids)
        like = next((ids[name] for name in batch.names), None)
        return LocalPlan(self.native, self._core.plan(batch.flat, batch.splits, dedup), batch.splits, like=like)

    def read(self, plan: LocalPlan, *, step: int = 0) -> Any:
        """Returns float32, flat: the rows of the plan's pairs end to end in plan order, each of its table's dim."""
        values = new_rows((plan.num_values,))
        self._core.read(plan.core, values, step_number(step, "group"))
        return as_type_of(values, plan.like)

    # Writing

    def assign(self, ids: Mapping[str, Ids], rows: Mapping[str, Floats], *, time: Times = None) -> None:
        """Overwrites weights, table by table."""
        self._require_same_names(ids, rows=rows)
        for name in sorted(ids):
            self[name].assign(ids[name], rows[name], time=time)

    def assign_add(self, ids: Mapping[str, Ids], rows: Mapping[str, Floats], *, time: Times = None) -> None:
        """Adds to weights, table by table."""
        self._require_same_names(ids, rows=rows)
        for name in sorted(ids):
            self[name].assign_add(ids[name], rows[name], time=time)

    def reinitialize(self, name: str, ids: Ids, *, time: Times = None) -> Any:
        """Resets rows of one table, like `HashTable.reinitialize`; handles an unknown table like ByteDance Monolith.

        Returns:
            int8, shape of ids: 1 where the id had a row, 0 where it was inserted; -1 everywhere, with a warning in the
            log, when the group has no table of that name.
        """
        if name in self:
            return self[name].reinitialize(ids, time=time)
        _log.warning("reinitialize: the group has no table %r; it has %s", name, ", ".join(self.names))
        return as_type_of(np.full(id_array(ids, "group").shape, -1, np.int8), ids)

    def erase(self, ids: Mapping[str, Ids]) -> int:
        """Removes rows of some tables, like `HashTable.erase`; returns the number of rows removed."""
        return sum(self[name].erase(ids[name]) for name in sorted(ids))

    def apply_gradients(
        self,
        ids: Mapping[str, Ids],
        grads: Mapping[str, Floats],
        *,
        step: int | None = None,
        time: Times | Mapping[str, Times] = None,
        learning_rates: Mapping[str, LearningRates] | None = None,
        dedup: bool = True,
        latest: Mapping[str, Floats] | None = None,
    ) -> Applied:
        """Makes one optimizer step for every id of every table; see `HashTable.apply_gradients`.

        ``learning_rates`` names the tables that differ from their optimizers. ``time`` is one number, or a mapping with
        one time per id of each table.
        """
        self._require_same_names(ids, grads=grads, latest=latest)
        batch = self._batch(ids)
        number = optional_step(step, "group")
        rates = self._rates(batch, learning_rates, number or 0)
        gradients = self._flat_floats(batch, grads, "grads")
        seen = None if latest is None else self._flat_floats(batch, latest, "latest")
        times = self._times(batch, time)
        plan = self._core.plan(batch.flat, batch.splits, dedup)
        return apply_directly(self.native, plan, DirectUpdate(gradients, PER_ID, rates, number, times, latest=seen))

    def apply(
        self,
        plan: LocalPlan,
        grads: Floats,
        *,
        step: int | None = None,
        time: Times = None,
        learning_rates: Mapping[str, LearningRates] | None = None,
        scale: float = 1.0,
    ) -> Applied:
        """Makes one optimizer step with summed gradients in the flat order of `read`, each times ``scale``."""
        number = optional_step(step, "group")
        gradients = float_array(grads, (plan.num_values,), "group", "grads")
        times = time_array(time, (plan.core.num_ids,), "group")
        named = self._named_rates(learning_rates)
        rates = self.native.rates({n: named.get(n) for n in range(len(self))}, number or 0)
        update = DirectUpdate(gradients, PER_UNIQUE_ID, rates, number, times, scale=finite_scale(scale, "group"))
        return apply_directly(self.native, plan.core, update)

    # All tables

    def evict(self, now: int | None = None) -> int:
        """Removes expired rows of all tables (None: at each table's newest time); returns how many."""
        return self._core.evict(-1, -1 if now is None else int(time_array(now, (), "group")[0]))

    def clear(self) -> None:
        """Removes every row of every table, and the admission counts."""
        self._core.clear()

    def stats(self) -> dict[str, dict[str, int | float]]:
        """Returns name -> the statistics of `HashTable.stats`."""
        return {name: table.stats() for name, table in self._tables.items()}

    def __repr__(self) -> str:
        rows = ", ".join(f"{name}: {len(table)} rows" for name, table in self._tables.items())
        return f"TableGroup({rows})"

    # Inside

    def _batch(self, ids: Mapping[str, Ids]) -> _Batch:
        total = sum(array_size(part) for part in ids.values())  # before anything is copied
        if total > MAX_IDS:
            raise InvalidArgumentError(f"group: at most 2^31 - 1 ids fit in one call, got {total}; split the batch")
        tables = sorted(self.native.number_of(name) for name in ids)
        names = [self.native.names[table] for table in tables]
        arrays = [id_array(ids[self.native.names[table]], self.native.subjects[table]) for table in tables]
        sizes = np.zeros(len(self.native) + 1, np.int64)
        for table, array in zip(tables, arrays, strict=True):
            sizes[table + 1] = array.size
        flat = _end_to_end([array.reshape(-1) for array in arrays], np.int64)
        return _Batch(tables, names, arrays, flat, np.cumsum(sizes))

    def _parts(self, values: NDArray[np.float32], batch: _Batch, like: Mapping[str, Ids]) -> dict[str, Any]:
        parts, at = {}, 0
        for table, name, array in zip(batch.tables, batch.names, batch.arrays, strict=True):
            dim = self.native.dims[table]
            part = values[at : at + array.size * dim].reshape(*array.shape, dim)
            parts[name] = as_type_of(part, like[name])
            at += part.size
        return parts

    def _flat_floats(self, batch: _Batch, values: Mapping[str, Floats], what: str) -> NDArray[np.float32]:
        parts = []
        for table, name, array in zip(batch.tables, batch.names, batch.arrays, strict=True):
            shape = (*array.shape, self.native.dims[table])
            parts.append(float_array(values[name], shape, self.native.subjects[table], what).reshape(-1))
        return _end_to_end(parts, np.float32)

    def _times(self, batch: _Batch, time: Times | Mapping[str, Times]) -> NDArray[np.int64]:
        if not isinstance(time, Mapping):
            return time_array(time, (batch.flat.size,), "group")
        self._require_same_names(dict.fromkeys(batch.names), time=time)
        parts = [
            np.broadcast_to(time_array(time[name], array.shape, self.native.subjects[table]), array.size)
            for table, name, array in zip(batch.tables, batch.names, batch.arrays, strict=True)
        ]
        return _end_to_end(parts, np.int64)

    def _rates(
        self, batch: _Batch, learning_rates: Mapping[str, LearningRates] | None, step: int
    ) -> NDArray[np.float32]:
        named = self._named_rates(learning_rates)
        return self.native.rates({table: named.get(table) for table in batch.tables} | named, step)

    def _named_rates(self, rates_by_name: Mapping[str, LearningRates] | None) -> dict[int, LearningRates]:
        return {self.native.number_of(name): rates for name, rates in (rates_by_name or {}).items()}

    def _require_same_names(self, ids: Mapping[str, Any], **others: Mapping[str, Any] | None) -> None:
        for what, other in others.items():
            if other is not None and other.keys() != ids.keys():
                raise InvalidArgumentError(
                    f"group: {what} must name the same tables as ids, {sorted(ids)}, got {sorted(other)}"
                )


def _end_to_end(parts: list[NDArray[Any]], dtype: type) -> NDArray[Any]:
    """Concatenates arrays; a single one is returned without a copy."""
    if len(parts) == 1:
        return np.ascontiguousarray(parts[0])
    return np.concatenate([np.empty(0, dtype), *parts])
