"""The resources of a process: objects, threads, descriptors and memory, to detect growth."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass

from monolith.observe.process_resources import resident_bytes

_SPARE_OBJECTS = 200
"""Allowance for caches of libraries; a leak of one object per step would exceed it."""
_SPARE_BYTES = 16 << 20
"""Allowance for an allocator; a leak of a kilobyte per step of a long run would exceed it."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """Resource counts at one point in time."""

    objects: int
    threads: int
    descriptors: int
    resident_bytes: int

    @classmethod
    def now(cls) -> Holdings:
        """Returns the counts of this process."""
        gc.collect()
        return cls(
            objects=len(gc.get_objects()),
            threads=len(os.listdir("/proc/self/task")),  # noqa: PTH208 - names are enough
            descriptors=len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - names are enough
            resident_bytes=resident_bytes(),
        )

    def grown_since(
        self,
        before: Holdings,
        *,
        spare_objects: int = _SPARE_OBJECTS,
        spare_threads: int = 0,
        spare_descriptors: int = 0,
    ) -> str | None:
        """Returns the resources that have grown beyond the allowance, or None."""
        found = []
        if self.objects > before.objects + spare_objects:
            found.append(f"{self.objects - before.objects} objects more")
        if self.threads > before.threads + spare_threads:
            found.append(f"{self.threads - before.threads} threads more")
        if self.descriptors > before.descriptors + spare_descriptors:
            found.append(f"{self.descriptors - before.descriptors} descriptors more")
        if self.resident_bytes > before.resident_bytes + _SPARE_BYTES:
            found.append(f"{(self.resident_bytes - before.resident_bytes) >> 20} MiB more")
        return ", ".join(found) or None
