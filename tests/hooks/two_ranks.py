"""Run by each of two ranks: one has less data than the other, and files are in the model directory of rank 0's word."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from monolith import collective
from monolith.hooks import SecondOrStepTimerWithTideSetting, SyncTrainingForceDumpHook
from monolith.testing import ExampleTask, StepLoop
from monolith.train import (
    EofAwareTask,
    MarkerFilesConfig,
    SavingConfig,
    Spec,
    Task,
    Trainer,
    TrainerConfig,
    get_current_session,
)


class Counting(Task):
    """Three batches on rank 0, and two more on each further rank."""

    def input_fn(self, mode: Any) -> Any:
        return self.ctx.unshared(range(3 + 2 * collective.rank()))

    def model_fn(self, features: Any, mode: Any) -> Spec:
        def train_op() -> None:
            get_current_session().state.global_step += 1

        return Spec(train_op=train_op)


def steps_saved_by_a_trainer(model_dir: Path) -> list[int]:
    """Each rank has a model directory of its own, as it has rows of its own; files are in that of rank 0."""
    files = MarkerFilesConfig(dump_look_steps=3)
    config = TrainerConfig(model_dir=str(model_dir), saving=SavingConfig(marker_files=files))
    Trainer(ExampleTask(), config).train()
    return sorted(int(path.stem.split("-")[1]) for path in model_dir.glob("model.ckpt-*.manifest"))


def main(folder: Path) -> None:
    """Writes what this rank saw."""
    collective.init(timeout_seconds=50)
    rank = collective.rank()
    model_dir = folder / "model" if rank == 0 else folder / "not there"  # only rank 0 looks
    timer = SecondOrStepTimerWithTideSetting(every_steps=10**9)
    timer.update_last_triggered_step(0)
    with StepLoop([SyncTrainingForceDumpHook(str(model_dir), timer, step_interval=2)]) as loop:
        while not loop.stop_requested:
            loop.run(lambda: None)
        saves = timer.should_trigger_for_step(loop.global_step)
    seen = {
        "eof_step": Trainer(EofAwareTask(Counting())).train().global_step,
        "stop_step": loop.global_step,
        "saves": saves,
        "saved_steps": steps_saved_by_a_trainer(folder / f"trainer_{rank}"),
    }
    (folder / f"{rank}.json").write_text(json.dumps(seen))
    collective.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
