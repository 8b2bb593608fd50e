"""Many steps of one training: memory, objects, threads and files stay what they were."""

from __future__ import annotations

import gc
import itertools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from monolith.observe.process_memory import resident_bytes
from monolith.testing.attack.attempt import Attempt
from monolith.testing.example_task import ExampleTask
from monolith.train import PipelineConfig, Session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["attempts"]

STEPS_PER_ATTEMPT = 250
_WARM_UP_STEPS = 500
_SPARE_OBJECTS = 200
"""What caches of libraries may still take up; one object for each step would be more."""
_SPARE_BYTES = 16 << 20
"""What an allocator may still ask for; a kilobyte for each step of a long run would be more."""


@dataclass(frozen=True, slots=True)
class _Holdings:
    objects: int
    threads: int
    descriptors: int
    resident_bytes: int

    @classmethod
    def now(cls) -> _Holdings:
        gc.collect()
        return cls(
            objects=len(gc.get_objects()),
            threads=len(os.listdir("/proc/self/task")),  # noqa: PTH208 - names are enough
            descriptors=len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - names are enough
            resident_bytes=resident_bytes(),
        )

    def grown_since(self, before: _Holdings) -> str | None:
        """What is more than it was."""
        found = []
        if self.objects > before.objects + _SPARE_OBJECTS:
            found.append(f"{self.objects - before.objects} objects more")
        if self.threads > before.threads:
            found.append(f"{self.threads - before.threads} threads more")
        if self.descriptors > before.descriptors:
            found.append(f"{self.descriptors - before.descriptors} descriptors more")
        if self.resident_bytes > before.resident_bytes + _SPARE_BYTES:
            found.append(f"{(self.resident_bytes - before.resident_bytes) >> 20} MiB more")
        return ", ".join(found) or None


def attempts(seed: int, folder: Path) -> Iterator[Attempt]:  # noqa: ARG001 - every attack has this signature
    """Steps of one endless training, looked at after every 250; the ids of its data are soon all known."""
    torch.set_num_threads(1)
    params = ExampleTask.params()
    params.set(num_batches=1 << 40)
    task = ExampleTask(params)
    pipeline = PipelineConfig(prefetch=2, postpush=True)
    with Session(task, pipeline=pipeline) as session, session.feed(task.input_fn("train")) as feed:
        for _ in range(_WARM_UP_STEPS):
            session.run_next(feed)
        before = _Holdings.now()
        for number in itertools.count(1):
            for _ in range(STEPS_PER_ATTEMPT):
                session.run_next(feed)
            problem = _Holdings.now().grown_since(before)
            yield Attempt(f"after {number * STEPS_PER_ATTEMPT} steps", f"{STEPS_PER_ATTEMPT} steps", problem)
