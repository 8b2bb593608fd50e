"""Merges slots into as few tables as their configs allow.

Slots whose rows start, learn and are compressed alike share a table. Equal ids of two slots never share a row: keys
carry the number of their slot (docs/formats/buckets.md), on which expiry and admission by slot depend. Only a slot of
layout ``any`` gets a table of its own.

Saved rows are found by names of tables and numbers of slots, so these do not depend on what may change between two
runs: a table is named by the shape of its rows, a slot is numbered by its name and, where two names have the same
number, by the other slots of its table.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from monolith.errors import InvalidArgumentError
from monolith.ids import NUM_SLOTS_V2
from monolith.nn.slot import Slot, combiner_of
from monolith.tables import MAX_WIDE_SLOTS, Segment, TableConfig, fnv1a_64

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from monolith.nn.combiners import Combiner
    from monolith.nn.slot import LearningRate, Slice
    from monolith.tables import RowOptimizer


@dataclass(frozen=True, slots=True)
class LearnedSegment:
    """A segment and where its learning rate comes from."""

    segment: Segment
    rate: LearningRate | None
    """Learning rate; None: the optimizer's own."""
    is_common: bool
    """True iff optimizer and rate are those of the module."""

    @property
    def is_elementwise(self) -> bool:
        """True iff the segment may be cut or joined anywhere without changing what is learned."""
        return self.segment.optimizer.is_elementwise

    def joins(self, other: LearnedSegment) -> bool:
        """Returns whether `other`, as the next slice, can be part of this segment."""
        alike = replace(other.segment, dim=self.segment.dim) == self.segment and same_rate(other.rate, self.rate)
        return alike and self.is_elementwise


@dataclass(slots=True)
class MergedTable:
    """Slots that share a table."""

    segments: tuple[LearnedSegment, ...]
    takes_any_id: bool
    name: str = ""
    slots: dict[str, Slot] = field(default_factory=dict)
    """Slots that define rows, in the order of the model."""
    numbers: dict[str, int] = field(default_factory=dict)
    """Slot -> its number in the ids; empty where `takes_any_id`."""

    @property
    def wide_slots(self) -> list[int]:
        """Numbers of the slots that take any int64, ascending; wide keys count them."""
        return sorted(self.numbers[name] for name, slot in self.slots.items() if slot.id_layout == "int64")

    def config(self, defaults: TableConfig) -> TableConfig:
        """Returns the config of the table, with expiry and admission by slot; everything else is as in `defaults`."""
        segments = [segment.segment for segment in self.segments]
        if self.takes_any_id:
            (slot,) = self.slots.values()
            days, count = slot.expire_days, slot.min_count
            return replace(defaults, segments=segments, name=self.name, expire_days=days, min_count=count)
        slot_days = {self.numbers[name]: slot.expire_days for name, slot in self.slots.items()}
        slot_counts = {self.numbers[name]: slot.min_count for name, slot in self.slots.items()}
        table = replace(defaults, segments=segments, name=self.name, wide_slots=self.wide_slots)
        return replace(table, slot_expire_days=slot_days, slot_min_counts=slot_counts)

    @property
    def is_common(self) -> bool:
        """True iff its slots learn by the module's optimizer and rate."""
        return all(segment.is_common for segment in self.segments)

    @property
    def shape_name(self) -> str:
        """Shape of the table's saved rows, such as ``1-ftrl_16-adagrad``."""
        return "_".join(f"{segment.segment.dim}-{segment.segment.optimizer.kernel()[0]}" for segment in self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedSlot:
    """Location of the rows and the output of one slot."""

    name: str
    slot: Slot
    """With everything that it shares filled in."""
    combiner: Combiner
    table: str
    number: int | None
    """Slot number in bits 48..62 of its ids; None where the slot has a table of its own."""
    wide_index: int | None
    """Index among the table's wide slots; None where its ids may not be wide."""
    dim: int
    column: int
    """First column of its output in the row of an example."""

    @property
    def rows(self) -> tuple[str, int | None]:
        """Key that is equal for slots that read and train the same rows."""
        return self.table, self.number

    @property
    def width(self) -> int:
        """Numbers of its output per example."""
        return self.combiner.width(self.dim)


def same_rate(left: LearningRate | None, right: LearningRate | None) -> bool:
    """Returns whether two slots verifiably learn at the same rate: equal values, or the same function."""
    return left is right or bool(left == right)


def merge_slots(
    slots: Mapping[str, Slot], *, optimizer: RowOptimizer, learning_rate: LearningRate | None
) -> list[MergedTable]:
    """Returns the tables that hold the rows of these slots, in the order of their first slots.

    Raises:
        InvalidArgumentError: slots of one table that were given the same number, or more slots than one table takes.
    """
    tables: list[MergedTable] = []
    for name, slot in slots.items():
        if slot.shares is not None:
            continue
        segments = _segments_of(slot, optimizer, learning_rate)
        _table_for(tables, segments, takes_any_id=slot.id_layout == "any").slots[name] = slot
    _name_tables(tables)
    for table in tables:
        if not table.takes_any_id:
            table.numbers = _numbers_of(table)
            _require_few_wide_slots(table)
    return tables


def place_slots(slots: Mapping[str, Slot], tables: Iterable[MergedTable]) -> dict[str, PlacedSlot]:
    """Returns every slot with its location, in the order of the model: outputs lie side by side in that order.

    Raises:
        InvalidArgumentError: a slot that shares one that does not exist, or that shares itself.
    """
    table_of = {name: table for table in tables for name in table.slots}
    placed, column = {}, 0
    for name, slot in slots.items():
        owner = _owner_of(name, slots)
        table = table_of[owner]
        shown = slot
        if owner != name:
            shown = replace(slots[owner], combiner=slot.combiner, padding_id=slot.padding_id)
        number = table.numbers.get(owner)
        place = PlacedSlot(
            name=name,
            slot=shown,
            combiner=combiner_of(slot),
            table=table.name,
            number=number,
            wide_index=table.wide_slots.index(number) if number is not None and shown.id_layout == "int64" else None,
            dim=sum(shown.slice_dims),
            column=column,
        )
        placed[name] = place
        column += place.width
    return placed


def original_table_names(slots: Iterable[str]) -> list[str]:
    """Returns the names under which ByteDance Monolith's checkpoints may have the merged table of these slots.

    >>> original_table_names(["slot1", "slot0"])
    ['e21904dd414d1780e5fc904866dc69c2']
    """
    names = [sorted(slots)]
    names.append(sorted(re.sub(r"^fc_slot_(\d+)$", r"slot_\1", name) for name in names[0]))
    digests = [hashlib.md5(",".join(name_list).encode(), usedforsecurity=False).hexdigest() for name_list in names]
    return list(dict.fromkeys(digests))


def _segments_of(slot: Slot, optimizer: RowOptimizer, learning_rate: LearningRate | None) -> tuple[LearnedSegment, ...]:
    segments: list[LearnedSegment] = []
    for part in slot.slices:
        segment = _segment_of(slot, part, optimizer, learning_rate)
        if segments and segments[-1].joins(segment):
            joined = replace(segment.segment, dim=segments[-1].segment.dim + part.dim)
            segments[-1] = replace(segments[-1], segment=joined, is_common=segments[-1].is_common and segment.is_common)
        else:
            segments.append(segment)
    return tuple(segments)


def _segment_of(slot: Slot, part: Slice, optimizer: RowOptimizer, learning_rate: LearningRate | None) -> LearnedSegment:
    """Returns a segment. A learning rate drives only the optimizer of its own level, not a slice's own optimizer."""
    chosen, rate, is_common = optimizer, learning_rate, True
    for level in (slot, part):
        if level.optimizer is not None:
            chosen, rate, is_common = level.optimizer, None, False
        if level.learning_rate is not None:
            rate, is_common = level.learning_rate, False
    segment = Segment(
        part.dim,
        initializer=part.initializer or slot.initializer,
        optimizer=chosen,
        compressor=part.compressor or slot.compressor,
    )
    return LearnedSegment(segment, rate, is_common)


def _table_for(tables: list[MergedTable], segments: tuple[LearnedSegment, ...], *, takes_any_id: bool) -> MergedTable:
    if not takes_any_id:
        for table in tables:
            if not table.takes_any_id and _same_segments(table.segments, segments):
                return table
    tables.append(MergedTable(segments, takes_any_id))
    return tables[-1]


def _same_segments(left: Sequence[LearnedSegment], right: Sequence[LearnedSegment]) -> bool:
    return len(left) == len(right) and all(
        mine.segment == theirs.segment and same_rate(mine.rate, theirs.rate)
        for mine, theirs in zip(left, right, strict=True)
    )


def _name_tables(tables: Sequence[MergedTable]) -> None:
    """Names one table of each shape by the shape; the others add the name of their first slot.

    The table that learns by the module's rule comes first, then the one with the most slots: a slot that gets a rule of
    its own moves to a new table, and the remaining slots keep the table's name.
    """
    taken: set[str] = set()
    for table in sorted(tables, key=lambda merged: (not merged.is_common, -len(merged.slots))):
        is_free = not table.takes_any_id and table.shape_name not in taken
        table.name = table.shape_name if is_free else f"{table.shape_name}@{next(iter(table.slots))}"
        taken.add(table.name)


def _numbers_of(table: MergedTable) -> dict[str, int]:
    """Returns a distinct number for every slot: the one it specifies, or a hash of its name.

    Where that is taken, a slot takes the next free one, in the order of names; slots with fixed numbers come first. So
    the numbers follow from the slots alone, whatever their order in the model.
    """
    settled = {name: _hashed(name) if slot.number is None else slot.number for name, slot in table.slots.items()}
    # Ids of layout v2 come with the slot's number packed in.
    is_fixed = {name: slot.number is not None or slot.id_layout == "v2" for name, slot in table.slots.items()}
    fixed = {name: settled[name] for name in settled if is_fixed[name]}
    _require_own_numbers(fixed)
    if len(settled) > NUM_SLOTS_V2:
        raise InvalidArgumentError(
            f"table {table.name!r}: at most {NUM_SLOTS_V2} slots fit one table, got {len(settled)}; give some of them a"
            " dim or optimizer of their own"
        )
    taken = set(fixed.values())
    for name in sorted(settled.keys() - fixed.keys()):
        while settled[name] in taken:
            settled[name] = (settled[name] + 1) % NUM_SLOTS_V2
        taken.add(settled[name])
    return settled


def _require_few_wide_slots(table: MergedTable) -> None:
    if len(table.wide_slots) > MAX_WIDE_SLOTS:
        raise InvalidArgumentError(
            f"table {table.name!r}: at most {MAX_WIDE_SLOTS} slots of any int64 fit one table, got"
            f" {len(table.wide_slots)}; give id_layout='raw' to those whose ids are in [0, 2^48), or some of them a dim"
            " or optimizer of their own"
        )


def _hashed(name: str) -> int:
    return fnv1a_64(name) % NUM_SLOTS_V2


def _require_own_numbers(numbers: Mapping[str, int]) -> None:
    by_number: dict[int, list[str]] = {}
    for name, number in numbers.items():
        by_number.setdefault(number, []).append(name)
    clashes = [names for names in by_number.values() if len(names) > 1]
    if not clashes:
        return
    free = (number for number in range(NUM_SLOTS_V2) if number not in by_number)
    advice = [f"{name!r} number={next(free)}" for names in clashes for name in names[1:]]
    pairs = "; ".join(" and ".join(map(repr, names)) + f" ({numbers[names[0]]})" for names in clashes)
    raise InvalidArgumentError(
        f"slots with the same number would share rows: {pairs}; give them numbers of their own, such as"
        f" {', '.join(advice)}, and keep these for as long as saved rows are used"
    )


def _owner_of(name: str, slots: Mapping[str, Slot]) -> str:
    shares = slots[name].shares
    if shares is None:
        return name
    if shares not in slots:
        raise InvalidArgumentError(
            f"slot {name!r}: it shares {shares!r}, which is no slot; the slots are {list(slots)}"
        )
    if slots[shares].shares is not None:
        raise InvalidArgumentError(
            f"slot {name!r}: it shares {shares!r}, which itself shares {slots[shares].shares!r}; share that one"
        )
    return shares
