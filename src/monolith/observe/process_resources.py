"""Resources of this process: file descriptors and memory."""

from __future__ import annotations

import resource
from pathlib import Path

from monolith.errors import UnimplementedError


def share_of_descriptors(most: int, share: float = 0.125) -> int:
    """Returns `most`, limited to this share of the descriptors that the process may open; at least 1."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else max(1, min(most, int(soft * share)))


_STATUS = Path("/proc/self/status")


def resident_bytes() -> int:
    """Returns the memory of this process that is in RAM now.

    Raises:
        UnimplementedError: the system does not report it.
    """
    return _status_bytes("VmRSS")


def peak_resident_bytes() -> int:
    """Returns the most memory that this process ever had in RAM.

    Raises:
        UnimplementedError: the system does not report it.
    """
    return _status_bytes("VmHWM")


def _status_bytes(field: str) -> int:
    try:
        text = _STATUS.read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise UnimplementedError(
            f"memory of a process is read from {_STATUS}, which this system does not have"
        ) from error
    line = next(line for line in text.splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024
