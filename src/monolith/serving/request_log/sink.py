"""Interface of the destinations of records: folder and topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["RecordSink", "Told"]

Told: TypeAlias = "Callable[[int, Exception | None], None]"
"""Called with a number of records and None when they are written, or the error if they are lost."""


class RecordSink(Protocol):
    """Destination of records. The outcome of each record is reported once, immediately or later. Not thread-safe."""

    def append(self, request_id: bytes, records: Sequence[bytes]) -> None:
        """Writes the records of a request. Does not raise: errors are reported to `Told`."""
        ...

    def flush(self) -> None:
        """Makes appended records visible to readers."""
        ...

    def close(self, seconds: float) -> None:
        """Waits up to `seconds` for pending records, and closes the sink."""
        ...
