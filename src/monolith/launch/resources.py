"""Resources that a role of a job requests of its machine."""

from __future__ import annotations

import re

from monolith.config import Config, config

__all__ = ["Resources", "bytes_of"]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


@config
class Resources(Config):
    """Guaranteed resources of each process of a kind."""

    cpus: float = 1.0
    """Processors; fractions are allowed."""
    memory_bytes: int = 4 * 2**30
    """Memory; a process that uses more may be killed by its scheduler."""

    def __post_init__(self) -> None:
        if not self.cpus > 0:
            raise ValueError(f"resources: cpus must be > 0, got {self.cpus}")
        if self.memory_bytes < 1:
            raise ValueError(f"resources: memory_bytes must be >= 1, got {self.memory_bytes}")


def bytes_of(text: str) -> int:
    """Parses a number of bytes in the notation of schedulers.

    >>> bytes_of("4Gi"), bytes_of("500M"), bytes_of("1024")
    (4294967296, 500000000, 1024)

    Raises:
        ValueError: It is not a number with one of their units.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt]?i?)b?", text.strip().lower())
    if found is None or found[2] not in _UNITS:
        raise ValueError(f"memory: expected a number of bytes such as 4Gi, 500M or 1073741824, got {text!r}")
    return int(float(found[1]) * _UNITS[found[2]])
