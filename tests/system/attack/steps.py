"""Many steps of one training: memory, objects, threads and files must not grow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import torch

from monolith.testing.example_task import ExampleTask
from monolith.train import PipelineConfig, Session
from system.attack.attempt import Attempt
from system.attack.holdings import Holdings

STEPS_PER_ATTEMPT = 250
_WARM_UP_STEPS = 500


def attempts(seed: int, folder: Path) -> Iterator[Attempt]:
    """Checks the resources of one endless training after every 250 steps; the ids of its data soon repeat."""
    torch.set_num_threads(1)
    params = ExampleTask.params()
    params.set(num_batches=1 << 40)
    task = ExampleTask(params)
    pipeline = PipelineConfig(prefetch=2, postpush=True)
    with Session(task, pipeline=pipeline) as session, session.feed(task.input_fn("train")) as feed:
        for _ in range(_WARM_UP_STEPS):
            session.run_next(feed)
        before = Holdings.now()
        for number in itertools.count(1):
            for _ in range(STEPS_PER_ATTEMPT):
                session.run_next(feed)
            problem = Holdings.now().grown_since(before)
            yield Attempt(f"after {number * STEPS_PER_ATTEMPT} steps", f"{STEPS_PER_ATTEMPT} steps", problem)
