"""One increment of a recovery record: what has changed in every store, and one moment of all owners."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.errors import AbortedError
from monolith.ps.recovery.entries import DenseEntry, Place, RowsEntry, Section
from monolith.ps.recovery.row_copy import RowCopy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from monolith.ps.dense_shard import CapturedDense, DenseShard
    from monolith.ps.held_gates import HeldGates
    from monolith.ps.hosted_rows import HostedRows
    from monolith.ps.recovery.record_file import RecordWriter

__all__ = ["Increment"]

_RECORDER = -1
"""What the gates know the recorder by; clients have numbers of their own."""
_HOLD_SECONDS = 1.0
"""The longest that pushes are held for it, and that another hold is waited for."""


class Increment:
    """Copies into a file; one thread. Any error leaves the owners as they are.

    Args:
        writer: The file.
        make_way: Whether somebody waits for the record: then it is given up.
    """

    def __init__(self, writer: RecordWriter, *, make_way: Callable[[], bool]) -> None:
        self._writer = writer
        self._make_way = make_way
        self._copies: dict[str, _StoreCopy] = {}
        self.parts: dict[str, bytes] = {}
        """What other parts of the server gave."""
        self.dense: CapturedDense | None = None
        """The dense weights, if they have moved."""

    def copy_rows(self, rows: HostedRows, *, begin: int, since: int) -> None:
        """Copies what has changed in a store, beside pushes.

        Args:
            rows: The store.
            begin: Epoch from which on the copy is said to hold everything.
            since: Epoch from which on it does; later where nothing changed between the two.
        """
        copy = _StoreCopy(rows, begin=begin, since=since, writer=self._writer, make_way=self._make_way)
        self._copies[rows.name] = copy
        copy.copy_beside()

    def take_moment(
        self,
        gates: HeldGates,
        *,
        dense: DenseShard | None,
        known_version: int,
        parts: Mapping[str, Callable[[], bytes]],
        others: Mapping[str, bytes],
    ) -> None:
        """Holds pushes and takes what is left.

        Args:
            gates: Of all owners.
            dense: The dense weights, unless they do not count now.
            known_version: Of those that were written before.
            parts: Name -> what gives its bytes.
            others: Bytes that came back, and that nobody has asked for yet.

        Raises:
            AbortedError: rows were replaced meanwhile, or it took too long.
            DeadlineExceededError: somebody else holds the pushes.
        """
        for copy in self._copies.values():
            copy.copy_beside()  # what changed while others were copied
        gates.hold(_RECORDER, _HOLD_SECONDS)
        try:
            for copy in self._copies.values():
                copy.take_moment()
            self.dense = None if dense is None else dense.capture(known_version)
            self.parts = {**others, **{name: dump() for name, dump in parts.items()}}
        finally:
            was_held = gates.release(_RECORDER)
        if not was_held:
            raise AbortedError(f"recovery record: one moment took longer than {_HOLD_SECONDS} s")
        for copy in self._copies.values():
            copy.give_rest()

    @property
    def num_changes(self) -> int:
        """Rows and removals."""
        return sum(copy.changes for copy in self._copies.values())

    def entries(self) -> dict[str, RowsEntry]:
        """What was copied of each store."""
        return {name: copy.entry() for name, copy in self._copies.items()}

    def write_dense(self, number: int) -> DenseEntry | None:
        """Writes the dense weights, if they have moved."""
        if self.dense is None:
            return None
        place = Place(self._writer.size, self.dense.packed.data.numel())
        self._writer.append_array(self.dense.packed.data.numpy())
        return DenseEntry(
            layout=self.dense.layout,
            origin=self.dense.origin,
            stamps=self.dense.stamps,
            index_bytes=self.dense.packed.index_bytes,
            number=number,
            place=place,
        )

    def write_parts(self) -> dict[str, Place]:
        """Writes what other parts gave."""
        return dict(places_of(self._writer, self.parts))


def places_of(writer: RecordWriter, parts: Mapping[str, bytes]) -> Iterator[tuple[str, Place]]:
    """Appends some bytes; their names and places."""
    for name, data in parts.items():
        yield name, Place(writer.size, len(data))
        writer.append(data)


class _StoreCopy:
    """The copy of one store in a file."""

    def __init__(
        self, rows: HostedRows, *, begin: int, since: int, writer: RecordWriter, make_way: Callable[[], bool]
    ) -> None:
        self._rows = rows
        self._begin = begin
        self._writer = writer
        self._make_way = make_way
        self._copy = RowCopy(rows, since, self._take)
        self._lineage = rows.lineage.number
        self._places: list[Place] = []
        self._entry: RowsEntry | None = None

    @property
    def changes(self) -> int:
        return self._copy.changes

    def copy_beside(self) -> None:
        begin = self._writer.size
        self._copy.copy_beside()
        self._add_place(begin)

    def take_moment(self) -> None:
        """While pushes are held."""
        if self._rows.lineage.number != self._lineage:
            raise AbortedError(f"recovery record: the rows of store {self._rows.name!r} were replaced meanwhile")
        end = self._copy.copy_rest()
        generation, life = self._rows.life
        self._entry = RowsEntry(
            agreement=self._rows.agreement.decode(),
            lineage=self._lineage,
            generation=generation,
            life=life,
            end=end,
            stamps=self._rows.stamps(),
            newest_times=tuple(self._rows.newest_times()),
            snapshots=dict(self._rows.lineage.snapshots),
            section=Section(begin=self._begin, places=(), rows=0),
        )

    def give_rest(self) -> None:
        begin = self._writer.size
        self._copy.give_rest()
        self._add_place(begin)

    def entry(self) -> RowsEntry:
        if self._entry is None:
            raise AssertionError("take_moment comes first")
        section = Section(begin=self._begin, places=tuple(self._places), rows=self._copy.rows)
        return self._entry.with_section(section)

    def _add_place(self, begin: int) -> None:
        if self._writer.size > begin:
            self._places.append(Place(begin, self._writer.size - begin))

    def _take(self, block: bytes) -> None:
        if self._make_way():
            raise AbortedError("recovery record: somebody else needs it")
        self._writer.append(block)
