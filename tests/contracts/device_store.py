"""A store whose rows are on another device: the engine that the recipe of `CONTRIBUTING.md` was followed for.

Ids, plans, blocks and files are of the host; rows that are read, and gradients, are of the device. The rows themselves
are in a `LocalStore`, which nothing outside can reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from contracts.device_tensor import NAME, DeviceTensor, add_device
from monolith import environment
from monolith.errors import InvalidArgumentError
from monolith.tables import (
    Applied,
    BatchStamp,
    Finished,
    KeyedRows,
    KeyedValues,
    LocalStore,
    Pending,
    Plan,
    Rows,
    TableConfig,
    Traits,
    Update,
    WorkerSession,
)

DEVICE = ["device"] if environment.get("MONOLITH_TEST_DEVICE") == "1" else []
"""Name of the engine, in the processes of `test_device_engine.py`: torch has one place for a device of Python in each
process, and the tests of TPUs need it for torchax."""


class DevicePlan:
    """A plan that was made without the core, as other code sees it."""

    core = None

    def __init__(self, own: Plan) -> None:
        self.own = own
        self.stamp = own.stamp
        self.unique_ids, self.splits, self.inverse = own.unique_ids, own.splits, own.inverse
        self.counts, self.tables, self.num_values = own.counts, own.tables, own.num_values


class DeviceRows(NamedTuple):
    values: Tensor
    seen: int


def _to_device(rows: Rows) -> Pending[Rows]:
    return Finished(DeviceRows(DeviceTensor(rows.values), rows.seen))


def _own(plan: Plan) -> Plan:
    if not isinstance(plan, DevicePlan):
        raise InvalidArgumentError(f"device store: plan must come from this store's plan(), got {type(plan).__name__}")
    return plan.own


def _of_device(tensor: Tensor) -> Tensor:
    """Gradients of the host are accepted, at the cost of a copy."""
    moved = tensor.to(NAME)
    assert isinstance(moved, DeviceTensor)
    return moved.on_host


class DeviceSession:
    def __init__(self, own: WorkerSession) -> None:
        self._own = own
        self.worker, self.applied, self.applied_by_server = own.worker, own.applied, own.applied_by_server
        self.next_seq = own.next_seq
        self.discard = lambda plan: own.discard(_own(plan))
        self.flush, self.cut, self.evict = own.flush, own.cut, own.evict

    def plan(self, ids: Tensor, table_splits: Tensor, *, stamp: BatchStamp, buckets: Tensor | None = None) -> Plan:
        return DevicePlan(self._own.plan(ids, table_splits, stamp=stamp, buckets=buckets))

    def read(self, plan: Plan, *, after: int, step: int, train: bool) -> Pending[Rows]:
        return _to_device(self._own.read(_own(plan), after=after, step=step, train=train).result())

    def apply(self, updates: Sequence[tuple[Plan, Tensor]], rule: Update) -> Pending[Applied]:
        latest = None if rule.latest is None else [_of_device(rows) for rows in rule.latest]
        return self._own.apply(
            [(_own(plan), _of_device(gradient)) for plan, gradient in updates], replace(rule, latest=latest)
        )


class DeviceStore:
    """A `monolith.tables.ServingRows` whose rows are on the device `contracts.device_tensor.NAME`."""

    core = None
    traits = Traits(device=NAME)

    def __init__(self, configs: Mapping[str, TableConfig], *, rows: LocalStore | None = None) -> None:
        """`rows`: what the device holds at first."""
        assert add_device()
        own = LocalStore(configs) if rows is None else rows
        self.schema, self.owned = own.schema, own.owned
        self._own = own
        self.cut, self.open_reader, self.touch, self.erase = own.cut, own.open_reader, own.touch, own.erase
        self.load, self.prepare_restore, self.resume = own.load, own.prepare_restore, own.resume
        self.assign, self.stats, self.rows_by_slot, self.close = own.assign, own.stats, own.rows_by_slot, own.close
        self.overwrite, self.learning_rates_at = own.overwrite, own.learning_rates_at

    def join(self, worker: int) -> DeviceSession:
        return DeviceSession(self._own.join(worker))

    def plan(self, ids: Tensor, table_splits: Tensor, *, stamp: BatchStamp, buckets: Tensor | None = None) -> Plan:
        return DevicePlan(self._own.plan(ids, table_splits, stamp=stamp, buckets=buckets))

    def read(self, plan: Plan, *, step: int) -> Pending[Rows]:
        return _to_device(self._own.read(_own(plan), step=step).result())

    def lookup(self, keyed: KeyedRows, *, step: int = 0) -> KeyedValues:
        found = self._own.lookup(keyed, step=step)
        return found._replace(values=DeviceTensor(found.values))
