"""Names of devices in a job, as texts."""

from __future__ import annotations

from typing import Final

__all__ = ["PS_JOB_NAME", "ps_device"]

PS_JOB_NAME: Final = "ps"
"""The job of parameter servers."""


def ps_device(index: int) -> str:
    """Returns the CPU of a parameter server; the index is not checked.

    >>> ps_device(3)
    '/job:ps/task:3/device:CPU:0'
    """
    return f"/job:{PS_JOB_NAME}/task:{index}/device:CPU:0"
