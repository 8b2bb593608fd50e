"""Applies the increments of a log to tables: selects bases, orders the parts, and recovers from damage."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from monolith.checkpoint import tensors_from_bytes
from monolith.deltalog import DENSE_PART, GapError, IncrementKind, require_published, store_of
from monolith.deltalog.follow.base_state import BaseState
from monolith.deltalog.publish.store_publisher import serving_schema
from monolith.errors import DataLossError, NotFoundError, OpError
from monolith.tables import ALL_BUCKETS, shared_buckets
from monolith.tables.formats import PackedBlocks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from monolith.deltalog import Base, DeltaLog, Increment, PartReader
    from monolith.tables import Store

_log = logging.getLogger(__name__)


class LogApplier:
    """Updates the tables of a follower. Not thread-safe: calls must not overlap.

    Args:
        stores: Serving tables by name.
        log: Log to apply.
        on_applied: Called with every increment once it is applied.
        on_dense: Called with the dense weights by name, once their rows are applied.
        buckets: Consecutive buckets that the tables keep; rows of other buckets are skipped, and their parts not read.
        rows_elsewhere: Whether other processes have the rows: weights are applied as they arrive, with `dense_needs`.
    """

    def __init__(
        self,
        stores: Mapping[str, Store],
        log: DeltaLog,
        *,
        on_applied: Callable[[Increment], None],
        on_dense: Callable[[Mapping[str, Tensor]], None] | None = None,
        buckets: range = ALL_BUCKETS,
        rows_elsewhere: bool = False,
    ) -> None:
        self._stores = stores
        self._rows_elsewhere = rows_elsewhere
        self._own = buckets
        self._log = log
        self._on_applied = on_applied
        self._on_dense = on_dense
        self.readers: dict[str, PartReader] = {}
        self.held: dict[str, Increment] = {}
        """Part -> increment that was read and not applied yet: others come first, or a base is temporarily
        unreachable."""
        self._waiting: dict[str, Base] = {}
        """Part -> the base at which it starts, once everything that must come before it is applied."""
        self.version: dict[str, int] = {}
        """Part -> number of its last applied increment; never decreases."""
        self.step = 0
        """Number of steps trained, of the newest applied rows."""
        self.dense_number = -1
        """Number, in the log or in the base, of the weights of the last call of `on_dense`."""
        self.dense_needs: dict[str, int] = {}
        """Part -> number of the increment of rows with which these weights were trained."""
        self._dense_from: int | Base | None = None
        """Number of the increment with the newest dense weights, or the base that has them."""

    def begin(self) -> None:
        """Loads the newest base of every part."""
        bases = self._log.bases()
        parts = {part for base in bases for part in base.numbers}
        for part in sorted(parts, key=lambda part: part == DENSE_PART):  # rows first, weights need them
            if self._is_ours(part):
                self._load_newest(part, bases, at_least=-1)

    def has_all_rows(self) -> bool:
        """Returns whether the log had rows for every bucket of every store that is kept here."""
        places = [place for part in self.version if (place := store_of(part)) is not None]
        return all(
            {bucket for name, buckets in places if name == store for bucket in buckets}.issuperset(self._own)
            for store in self._stores
        )

    def look_for_parts(self) -> None:
        """Opens readers for parts that are new in the log.

        Raises:
            FailedPreconditionError: the log is the recovery record of a parameter server.
        """
        for part in self._log.parts():
            if not self._is_ours(part):
                require_published(self._log.place, part)
            elif part not in self.readers and part not in self._waiting:
                place = store_of(part)
                schema = None if place is None else serving_schema(self._stores[place[0]].schema)
                following = self.version.get(part, -1) + 1
                self.readers[part] = self._log.open_reader(part, number=following, schema=schema)

    def apply_next(self) -> bool:
        """Applies the next increment of each part; returns whether there was anything to do.

        Raises:
            GapError, DataLossError: increments are missing or damaged, and there is no base after them.
            FailedPreconditionError: the log belongs to another model.
            UnavailableError: the log is unreachable; the next call applies what was read.
        """
        applied = self._load_waiting()
        for part in list(self.readers):
            try:
                applied |= self._apply_next(part)
            except (GapError, DataLossError) as error:
                self._begin_behind(part, error)
                applied = True
        return applied

    def dense_bytes(self) -> bytes | None:
        """Returns the newest applied dense weights as a safetensors file; None: there are none."""
        if self._dense_from is None or self.version.get(DENSE_PART) is None:
            return None
        if not isinstance(self._dense_from, int):
            return BaseState(self._dense_from).dense_bytes()
        with self._log.open_reader(DENSE_PART, number=self._dense_from) as reader:
            increment = reader.read()
        return None if increment is None else increment.payload

    def close(self) -> None:
        """Closes the readers."""
        for reader in self.readers.values():
            reader.close()
        self.readers = {}

    # Increments

    def _is_ours(self, part: str) -> bool:
        place = store_of(part)
        if place is None:
            return part == DENSE_PART
        return place[0] in self._stores and len(shared_buckets(place[1], self._own)) > 0

    def _apply_next(self, part: str) -> bool:
        increment = self.held.get(part) or self.readers[part].read()
        if increment is None:
            return False
        self.held[part] = increment
        if not self._rows_elsewhere and any(
            self.version.get(other, -1) < number for other, number in increment.needs.items()
        ):
            return False
        if increment.kind is IncrementKind.OPENING and increment.base is not None:
            self._load_named(part, increment)
        elif increment.kind is IncrementKind.ROWS:
            self._load_rows(part, increment)
        elif increment.kind is IncrementKind.DENSE:
            self._take_dense(increment)
        del self.held[part]
        self.version[part] = increment.number
        self.step = max(self.step, increment.step)
        self._on_applied(increment)
        return True

    def _load_rows(self, part: str, increment: Increment) -> None:
        place = store_of(part)
        if place is not None and increment.payload:
            store, buckets = place
            own = shared_buckets(buckets, self._own)
            self._stores[store].load(PackedBlocks(increment.payload), buckets=own, replace=False)

    def _take_dense(self, increment: Increment) -> None:
        self.dense_number, self.dense_needs = increment.number, dict(increment.needs)
        if self._on_dense is not None:
            self._on_dense(
                tensors_from_bytes(increment.payload, origin=f"increment {increment.number} of part {increment.part!r}")
            )
        self._dense_from = increment.number

    # Bases

    def _load_named(self, part: str, increment: Increment) -> None:
        """Loads the base at which an opening starts.

        Raises:
            GapError: the base was removed; a newer one is needed.
        """
        try:
            self._load(part, self._log.base(increment.base or ""))
        except NotFoundError as error:
            raise GapError(
                f"delta log '{self._log.place}', part {part!r}: increment {increment.number} begins with base"
                f" {increment.base!r}, which does not exist: {error.message}; resume from a later base"
            ) from error

    def _begin_behind(self, part: str, error: OpError) -> None:
        """Restarts at a base that contains the missing increments.

        Raises:
            OpError: the given error, if there is no such base.
        """
        held = self.held.get(part)
        number = held.number if held is not None else self.readers[part].next_number or 0
        base = self._load_newest(part, self._log.bases(), at_least=number)
        if base is None:
            raise error
        _log.warning("follower: restarts from base %r: %s", base.name, error)
        self.held.pop(part, None)
        self.readers.pop(part).close()
        self.look_for_parts()

    def _load_waiting(self) -> bool:
        """Loads waiting bases that are due; returns whether there were any."""
        due = [part for part, base in self._waiting.items() if self._is_due(part, base)]
        for part in due:
            base = self._waiting[part]
            try:
                self._load(part, base)
                self.version[part] = base.numbers[part]
            except (NotFoundError, DataLossError) as error:  # its increments in the log are read instead
                _log.warning("follower: base %r cannot be used, and is passed over: %s", base.name, error)
            del self._waiting[part]
        if due:
            self.look_for_parts()
        return bool(due)

    def _is_due(self, part: str, base: Base) -> bool:
        """Returns whether all increments that must come before a base are applied; a removed part has none left.

        Dense weights of a base belong to its rows and must not be applied before them.
        """
        needed = {**base.after, **(base.numbers if part == DENSE_PART else {})}
        missing = {
            other
            for other, number in needed.items()
            if other != part and self._is_ours(other) and self.version.get(other, -1) < number
        }
        return self._rows_elsewhere or not missing or not missing & set(self._log.parts())

    def _load_newest(self, part: str, bases: list[Base], *, at_least: int) -> Base | None:
        """Loads the newest readable base of a part, by its numbers, since clocks jump; None if there is none."""
        holding = [base for base in bases if base.holds(part) and base.numbers[part] >= at_least]
        for base in sorted(holding, key=lambda base: base.numbers[part], reverse=True):
            if not self._is_due(part, base):
                self._waiting[part] = base
                return base
            try:
                self._load(part, base)
            except (NotFoundError, DataLossError) as error:
                _log.warning("follower: base %r cannot be used, and is passed over: %s", base.name, error)
                continue
            self.version[part] = base.numbers[part]
            self.step = max(self.step, base.step)
            return base
        return None

    def _load(self, part: str, base: Base) -> None:
        place = store_of(part)
        if place is not None:
            BaseState(base).load(part, self._stores[place[0]], own=self._own)
            return
        self.dense_number = base.numbers[part]
        self.dense_needs = {rows: number for rows, number in base.numbers.items() if rows != DENSE_PART}
        if self._on_dense is not None:
            self._on_dense(BaseState(base).dense())
        self._dense_from = base
