"""What a process holds: objects, threads, descriptors and memory, to see whether they grow."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass

from monolith.observe.process_memory import resident_bytes

__all__ = ["Holdings"]

_SPARE_OBJECTS = 200
"""What caches of libraries may still take up; one object for each step would be more."""
_SPARE_BYTES = 16 << 20
"""What an allocator may still ask for; a kilobyte for each step of a long run would be more."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """Counts at one moment."""

    objects: int
    threads: int
    descriptors: int
    resident_bytes: int

    @classmethod
    def now(cls) -> Holdings:
        """Those of this process."""
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
        """What is more than it was, and more than may be spare."""
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
