"""The number of descriptors that this process may give to untrusted peers."""

from __future__ import annotations

import resource

__all__ = ["share_of_descriptors"]


def share_of_descriptors(most: int, share: float = 0.125) -> int:
    """Returns `most`, limited to this share of the descriptors that the process may open; at least 1."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else max(1, min(most, int(soft * share)))
