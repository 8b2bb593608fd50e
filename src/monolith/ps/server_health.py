"""How a parameter server is, as a client sees it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ServerHealth"]


@dataclass(frozen=True, slots=True)
class ServerHealth:
    """The memory of one server."""

    index: int
    address: str
    resident_bytes: int
    """That its process has in RAM."""
    limit_bytes: int
    """That it may have; 0: nobody has said."""

    @property
    def out_of_memory(self) -> bool:
        """Whether it has more than it may."""
        return 0 < self.limit_bytes < self.resident_bytes
