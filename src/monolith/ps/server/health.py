"""Health of a parameter server."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ServerHealth"]


@dataclass(frozen=True, slots=True)
class ServerHealth:
    """Memory use of one server."""

    index: int
    address: str
    resident_bytes: int
    """Resident memory of its process."""
    limit_bytes: int
    """Limit of resident memory; 0: no limit."""

    @property
    def out_of_memory(self) -> bool:
        """Whether its memory is above the limit."""
        return 0 < self.limit_bytes < self.resident_bytes
