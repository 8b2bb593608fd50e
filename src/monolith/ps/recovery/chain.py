"""Selects the recorded states, and the snapshot under them, that restore the rows of a store. Does no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from monolith.ps.recovery.entries import RecordedState, RowsEntry

_NEVER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsPlan:
    """How to restore the rows of a store: a snapshot, then sections."""

    snapshot_id: int | None
    """None: no snapshot."""
    filters_id: int | None
    """The snapshot of which only the filters are loaded, because a section has all rows; None: there is none."""
    states: tuple[int, ...]
    """Numbers of the states whose sections are loaded, in this order."""
    entry: RowsEntry | None
    """The restored state; None: that of the snapshot."""
    end: int
    """Epoch of the restored state."""
    cut_at: int | None
    """Number of the first unusable state, because one before it is missing; None: all are usable."""


def plan_rows(
    states: Mapping[int, RecordedState], store: str, last: RowsEntry, snapshots: Collection[int]
) -> RowsPlan | None:
    """Returns how to restore the rows of a store; None: they cannot be restored.

    Any snapshot of the lineage works: a section holds the later values of everything that changed after an epoch, so
    that a section which begins before the snapshot only repeats rows of the snapshot.

    Args:
        states: The readable states by number, in order.
        store: Name of the store.
        last: Entry of the store in the last state.
        snapshots: Snapshots of the newest checkpoint; empty without a checkpoint.
    """
    entries = [
        (number, state.stores[store])
        for number, state in states.items()
        if store in state.stores and state.stores[store].lineage == last.lineage
    ]
    whole = max((place for place, (_, entry) in enumerate(entries) if _is_whole(entry)), default=None)
    reaches_to = _NEVER if whole is None else entries[whole][1].end
    base = next((snapshot for snapshot in snapshots if last.snapshots.get(snapshot, _NEVER - 1) >= reaches_to), None)
    if base is not None:
        return _on_base(base, last.snapshots[base], entries)
    if whole is None:
        return None
    number, entry = entries[whole]
    filters = next((snapshot for snapshot in snapshots if snapshot in last.snapshots), None)
    return _followed(None, entry.end, [(number, entry)], entries[whole + 1 :], filters_id=filters)


def first_needed(states: Mapping[int, RecordedState], snapshots: Collection[int]) -> int:
    """Returns the number of the first state whose rows are needed: snapshots or later states have what is before it.

    Args:
        states: All states by number, in order; at least one. The last one is always needed.
        snapshots: Snapshots of the newest checkpoint.
    """
    *before, (number, last) = states.items()
    epochs = {
        name: max(_whole_end(states, name, entry), _epoch_in(entry, snapshots)) for name, entry in last.stores.items()
    }
    for earlier, state in before:
        for name, entry in state.stores.items():
            if not _is_covered(entry, last.stores.get(name), epochs.get(name, _NEVER)):
                return earlier
    return number


def _is_whole(entry: RowsEntry) -> bool:
    return entry.section is not None and entry.section.begin == 0


def _epoch_in(entry: RowsEntry, snapshots: Collection[int]) -> int:
    return max((epoch for number, epoch in entry.snapshots.items() if number in snapshots), default=_NEVER)


def _whole_end(states: Mapping[int, RecordedState], store: str, last: RowsEntry) -> int:
    """Returns the epoch before which sections end that precede a section with all rows."""
    entries = [state.stores[store] for state in states.values() if store in state.stores]
    return max(
        (entry.end - 1 for entry in entries if entry.lineage == last.lineage and _is_whole(entry)), default=_NEVER
    )


def _is_covered(entry: RowsEntry, last: RowsEntry | None, epoch: int) -> bool:
    if entry.section is None or last is None or entry.lineage != last.lineage:
        return True
    return entry.end <= epoch


def _on_base(base: int, epoch: int, entries: list[tuple[int, RowsEntry]]) -> RowsPlan:
    later = [(number, entry) for number, entry in entries if entry.end > epoch]
    return _followed(base, epoch, [], later)


def _followed(
    base: int | None,
    reached: int,
    begun: list[tuple[int, RowsEntry]],
    later: list[tuple[int, RowsEntry]],
    *,
    filters_id: int | None = None,
) -> RowsPlan:
    used = list(begun)
    cut_at = None
    for number, entry in later:
        if entry.section is None and entry.end <= reached:
            continue
        if entry.section is None or entry.section.begin > reached:
            cut_at = number
            break
        used.append((number, entry))
        reached = entry.end
    return RowsPlan(
        snapshot_id=base,
        filters_id=filters_id,
        states=tuple(number for number, _ in used),
        entry=used[-1][1] if used else None,
        end=reached,
        cut_at=cut_at,
    )
