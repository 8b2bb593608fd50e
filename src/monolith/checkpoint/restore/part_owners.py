"""Stores whose rows have several owners that can fail one by one, such as parameter servers, as a restore sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.tables.history import OwnerClock

__all__ = ["PartOwners", "part_owners"]


class PartOwners(Protocol):
    """The owners of a store's rows. A store that has them has an attribute `owners`; `monolith.ps.PsStore` does."""

    @property
    def owned(self) -> Sequence[range]:
        """The buckets of each owner."""
        ...

    def uninitialized(self) -> Sequence[int]:
        """Returns the owners without state: `set_initialized` was not called since they started."""
        ...

    def set_initialized(self) -> None:
        """Marks all owners as having state, for as long as they run."""
        ...

    def resume(self, lost: Sequence[int], *, applied: Sequence[OwnerClock], generation: int) -> None:
        """Like `Store.resume`, for these owners alone; the others are unchanged."""
        ...


def part_owners(store: object) -> PartOwners | None:
    """Returns the owners of a store's rows that can be lost one by one; None: they are lost together."""
    return cast("PartOwners | None", getattr(store, "owners", None))
