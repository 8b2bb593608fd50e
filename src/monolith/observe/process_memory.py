"""Memory use of a process, as the system counts it."""

from __future__ import annotations

from pathlib import Path

from monolith.errors import UnimplementedError

__all__ = ["peak_resident_bytes", "resident_bytes"]

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
