"""One named reader of changes at an engine and at the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.testing.contract_sides import refusal
from monolith.testing.store_contents import changes_of, replay, require_same, require_same_rows

if TYPE_CHECKING:
    from monolith.tables.formats.packed_blocks import PackedBlocks
    from monolith.tables.history import ChangeReader, Mark
    from monolith.testing.contract_sides import Sides
    from monolith.testing.store_contents import Contents


class ContractReader:
    """Keeps a copy of each side's rows from changes alone."""

    def __init__(
        self, sides: Sides, name: str, *, at: tuple[Mark, Mark] | None, copies: tuple[Contents, Contents]
    ) -> None:
        self._sides = sides
        self._name = name
        self._copies = copies
        marks = (None, None) if at is None else at
        engine, reference = (store.open_reader(name, at=mark) for store, mark in zip(sides.stores, marks, strict=True))
        self._readers: tuple[ChangeReader, ChangeReader] = engine, reference
        self.is_at_beginning = at is not None and at[1].epoch == 0
        """Whether nothing was read yet: the engine decides which removals are still available."""
        self._is_packed_next = False
        """Rounds alternate between blocks one by one and in one piece: the result must be the same."""

    @property
    def marks(self) -> tuple[Mark, Mark]:
        """Positions on both sides: all changes up to them were read."""
        return self._readers[0].mark, self._readers[1].mark

    def open_again(self) -> None:
        """Opens a handle of the same name, which continues at the position of the reader."""
        before = self.marks
        engine, reference = (store.open_reader(self._name) for store in self._sides.stores)
        self._readers = engine, reference
        require_same("marks of a reader opened again", self.marks, before)

    def follow(self) -> None:
        """Reads the changes, which must be the same on both sides; the copies then equal the stores."""
        exact = self._sides.exact
        reached = [reader.next_mark() for reader in self._readers]
        engine = changes_of(self._packed() if self._is_packed_next else self._readers[0].changes(state=True))
        self._is_packed_next = not self._is_packed_next
        reference = changes_of(self._readers[1].changes(state=True))
        require_same_rows("changes", engine.rows, reference.rows, exact=exact)
        if not self.is_at_beginning:
            require_same("removals", engine.removed, reference.removed)
        for copy, changes in zip(self._copies, (engine, reference), strict=True):
            replay(copy, changes)
        for reader, mark in zip(self._readers, reached, strict=True):
            reader.advance(mark)
            require_same("mark of a reader", reader.mark, mark)
        for copy, whole in zip(self._copies, self._sides.present_contents(), strict=True):
            require_same_rows("copy kept by changes", copy, whole, exact=exact)
        self.is_at_beginning = False

    def _packed(self) -> PackedBlocks:
        packed = self._readers[0].packed_changes(state=True)
        require_same("blocks in one piece", packed.count, len(list(packed)))
        return packed

    def close(self) -> None:
        """Closes the reader: its changes can no longer be requested."""
        for reader in self._readers:
            reader.close()
            reader.close()
        self.refuse()

    def refuse(self) -> None:
        """Requires that the reader is rejected: it was closed, or the stores have begun a new run id."""
        for reader in self._readers:
            refusal("mark of a reader that has ended", reader, lambda each: each.mark)
            refusal("next mark of a reader that has ended", reader, lambda each: each.next_mark())
            refusal("changes of a reader that has ended", reader, lambda each: each.changes(state=True))
            refusal("packed changes of a reader that has ended", reader, lambda each: each.packed_changes(state=True))
            reader.close()
