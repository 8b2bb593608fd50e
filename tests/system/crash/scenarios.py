"""How runs train and save while they are killed, and what must hold in the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from monolith.hook import Hook
from monolith.nn.table_defaults import TableDefaults, use_table_defaults
from monolith.train import PipelineConfig, SavingConfig, TablesConfig, Trainer, TrainerConfig
from system.crash.fingerprint import fingerprint
from system.crash.tasks import CountingTask, EverythingTask

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.hook import HookedSession
    from monolith.nn.table_defaults import StoreFactory
    from system.crash.tasks import CrashTask

__all__ = ["SCENARIOS", "Scenario"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One way to train and save."""

    name: str
    task: type[CrashTask]
    saving: SavingConfig
    pipeline: PipelineConfig
    evict_every_steps: int | None = None
    """Steps between removals of expired rows; None: rows stay."""
    must: str
    """Invariant of a killed run."""
    store: StoreFactory | None = None
    """Creates the store of the rows; None: a `LocalStore`."""

    def train(self, model_dir: str, seed: int, started: Callable[[int], None]) -> dict[str, Any]:
        """Runs or resumes to the end; calls `started` with the step that it resumes from. Returns the data to check."""
        # One thread: killed and uninterrupted runs then compute alike on a machine under load.
        torch.set_num_threads(1)
        params = self.task.params()
        params.seed = seed
        task = self.task(params)
        config = TrainerConfig(
            model_dir=model_dir,
            saving=self.saving,
            pipeline=self.pipeline,
            tables=TablesConfig(evict_every_steps=self.evict_every_steps),
            deterministic=self.task is EverythingTask,
        )
        with use_table_defaults(TableDefaults(store=self.store)):
            state = Trainer(task, config, hooks=[_TellStart(started)]).train()
        if isinstance(task, CountingTask):
            return {"step": state.global_step, "wrong": task.miscounts()[:5]}
        return {"step": state.global_step, "fingerprint": fingerprint(state)}


class _TellStart(Hook):
    def __init__(self, started: Callable[[int], None]) -> None:
        self._started = started

    def after_create_session(self, session: HookedSession) -> None:
        self._started(session.global_step)


SCENARIOS = (
    Scenario(
        name="steps",
        task=EverythingTask,
        saving=SavingConfig(every_steps=4, max_to_keep=3),
        pipeline=PipelineConfig(),
        evict_every_steps=7,
        must="equal bit for bit",
    ),
    Scenario(
        name="steps, background, read ahead",
        task=EverythingTask,
        saving=SavingConfig(every_steps=5, max_to_keep=3, background=True),
        pipeline=PipelineConfig(prefetch=2, postpush=True),
        evict_every_steps=7,
        must="equal bit for bit",
    ),
    Scenario(
        name="seconds",
        task=CountingTask,
        saving=SavingConfig(every_seconds=0.05, max_to_keep=3, background=True),
        pipeline=PipelineConfig(prefetch=2, postpush=True),
        must="every example once",
    ),
)
