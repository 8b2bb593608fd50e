"""Where a server writes its recovery record, and how often."""

from __future__ import annotations

import math
from dataclasses import field

from monolith.config import Config, config
from monolith.errors import InvalidArgumentError

__all__ = ["RecoveryConfig"]

_SUBJECT = "recovery record"


@config
class RecoveryConfig(Config):
    """How a parameter server comes back with what it had."""

    folder: str = field(kw_only=False)
    """Where the record goes; a path on this machine, or one that is mounted here and wherever the server may come back.
    All servers of a job may share it."""
    interval_seconds: float = 10.0
    """How often what has changed is written: at most so much is lost with a server. 0 writes nothing; a record that is
    there is still read at the start."""
    model_dir: str = ""
    """The directory of checkpoints, from which most rows come back, and which make old parts of the record needless.
    Empty: the record alone has everything, and is written anew when it has become long."""
    rate_bytes_per_second: float | None = 256e6
    """Highest rate of writing; None: as fast as the disk takes it."""

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
