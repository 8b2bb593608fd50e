"""A short training that counts its examples, for attacks: started, hit, restarted and checked."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from monolith.hook import Hook
from monolith.train import SavingConfig, Trainer, TrainerConfig
from system.crash.processes import Child
from system.crash.tasks import CountingTask

NUM_STEPS = 24
SAVINGS = (
    SavingConfig(every_steps=3, max_to_keep=2),
    SavingConfig(every_steps=2, max_to_keep=2, background=True),
    SavingConfig(every_seconds=0.02, max_to_keep=2, background=True),
)
"""Options with which a save is in progress at different points of the steps."""
_LONGEST_RUN_SECONDS = 50.0


def make_task(seed: int, task_class: type[CountingTask] = CountingTask, *, num_steps: int = NUM_STEPS) -> CountingTask:
    """Returns a task that reads few, small batches."""
    params = task_class.params()
    params.set(num_steps=num_steps, batch_size=32, seed=seed)
    return task_class(params)


def train(task: CountingTask, model_dir: Path, saving: SavingConfig, hooks: Sequence[Hook] = ()) -> int:
    """Runs or resumes a training; returns the step at which it ended."""
    torch.set_num_threads(1)
    state = Trainer(task, TrainerConfig(model_dir=str(model_dir), saving=saving), hooks=hooks).train()
    return state.global_step


def found_wrong(model_dir: Path, seed: int, saving: SavingConfig, *, num_steps: int = NUM_STEPS) -> str | None:
    """Resumes a run, lets it end, and checks it; returns None if every example was counted once."""
    task = make_task(seed, num_steps=num_steps)
    step = train(task, model_dir, saving)
    wrong = [] if step == num_steps else [f"ended at step {step}, expected {num_steps}"]
    return "; ".join([*wrong, *task.miscounts()[:3]]) or None


def found_wrong_anew(model_dir: Path, seed: int, saving: SavingConfig) -> str | None:
    """Runs `found_wrong` in a process of its own; the caller must not have used tables."""
    child = Child(lambda _: {"wrong": found_wrong(model_dir, seed, saving)})
    try:
        wrong: str | None = end_of(child)["result"]["wrong"]
    except RuntimeError as error:
        return f"cannot be resumed: {error}"
    finally:
        child.close()
    return wrong


def end_of(child: Child) -> dict[str, Any]:
    """Returns the reports of a process until its end.

    Raises:
        RuntimeError: it failed, or did not end.
    """
    deadline = time.monotonic() + _LONGEST_RUN_SECONDS
    while not child.has_ended():
        if time.monotonic() > deadline:
            child.kill()
            raise RuntimeError(f"did not end within {_LONGEST_RUN_SECONDS:g} s")
        time.sleep(0.002)
    return child.told()
