"""Settings of a server's recovery record, and the summary of a recovery."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from monolith.config import Config, config
from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.tables import BatchStamp

_SUBJECT = "recovery record"


@config
class RecoveryConfig(Config):
    """Recovery of a parameter server after a restart."""

    folder: str = field(kw_only=False)
    """Folder of the record: a local path, or a mounted one that is available wherever the server may restart. All
    servers of a job may share it."""
    interval_seconds: float = 10.0
    """How often changes are written: at most the updates of this time are lost with a server. 0 writes no record, and
    removes an existing one at the start."""
    model_dir: str = ""
    """Folder of the checkpoints, which restore most rows and make old files of the record obsolete. Empty: the record
    has all rows, and is rewritten from scratch when it has become long."""
    rate_bytes_per_second: float | None = 256e6
    """Maximum write rate; None: no limit."""

    def __post_init__(self) -> None:
        if not self.folder or "://" in self.folder:
            raise InvalidArgumentError(
                f"{_SUBJECT}: a folder of a file system that is mounted here is expected, got {self.folder!r}; object"
                " stores cannot append fast enough: give one with recovery_dir, or set partial_recovery to false"
            )
        if not 0 <= self.interval_seconds < math.inf:
            raise InvalidArgumentError(
                f"{_SUBJECT}: interval_seconds must be >= 0 (0: no record is written), got {self.interval_seconds}"
            )
        if self.rate_bytes_per_second is not None and not self.rate_bytes_per_second > 0:
            raise InvalidArgumentError(
                f"{_SUBJECT}: rate_bytes_per_second must be > 0 or None, got {self.rate_bytes_per_second}"
            )


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
