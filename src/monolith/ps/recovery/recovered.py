"""What a server came back with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.tables.batch import BatchStamp

__all__ = ["Recovered"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What a server came back with, by itself."""

    step: int | None
    """Of the checkpoint that most rows came from; None: all came from the record."""
    seconds: float
    """How long it took."""
    rows: int
    """Of all stores."""
    stamps: Mapping[str, Mapping[int, BatchStamp]]
    """Owner, such as ``rows/<store>`` or ``dense`` -> worker -> its last batch there."""
