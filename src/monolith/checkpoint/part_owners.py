"""Stores whose rows have several owners with lives of their own, such as parameter servers, as a restore sees them."""

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
        """Owners that have no state: nobody has said since they began that they have."""
        ...

    def set_initialized(self) -> None:
        """All owners have state from now on, as long as they live."""
        ...

    def resume(self, lost: Sequence[int], *, applied: Sequence[OwnerClock], generation: int) -> None:
        """As `Store.resume`, for these owners alone; the others stay where they are."""
        ...


def part_owners(store: object) -> PartOwners | None:
    """The owners of a store's rows that can be lost one by one; None: they share one life."""
    return cast("PartOwners | None", getattr(store, "owners", None))
