"""Summary of a server's recovery."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.tables.batch import BatchStamp

__all__ = ["Recovered"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What a server recovered after a restart."""

    step: int | None
    """Step of the checkpoint that most rows came from; None: all rows came from the record."""
    seconds: float
    """Duration of the recovery."""
    rows: int
    """Number of rows of all stores."""
    stamps: Mapping[str, Mapping[int, BatchStamp]]
    """Owner, such as ``rows/<store>`` or ``dense`` -> worker -> its last applied batch."""
