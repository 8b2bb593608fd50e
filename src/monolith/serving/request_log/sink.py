"""Where records go: what a folder and a topic have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["RecordSink", "Told"]

Told: TypeAlias = "Callable[[int, Exception | None], None]"
"""Called with a number of records and None when they are written, or why they never will be."""


class RecordSink(Protocol):
    """Takes records; what becomes of each is told once, then or later. Belongs to one thread."""

    def append(self, request_id: bytes, records: Sequence[bytes]) -> None:
        """Takes the records of a request. It fails for none of them: what goes wrong is told."""
        ...

    def flush(self) -> None:
        """Lets what was appended be seen by readers, as far as that needs a call."""
        ...

    def close(self, seconds: float) -> None:
        """Waits so long for what is under way, and ends."""
        ...
