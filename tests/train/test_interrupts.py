"""A run that is interrupted right behind a step has counted its batch: it is saved with the step, or neither is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from monolith.train import SavingConfig
from monolith.train._model_step import StepResult
from system.attack.counted_run import found_wrong, make_task, train

NUM_STEPS = 4
SAVING = SavingConfig(every_steps=100)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupt_between_a_step_and_its_result_counts_no_batch_twice(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    result_of = StepResult.of

    def interrupted(*arguments: Any) -> StepResult:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise error
        return result_of(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(StepResult, "of", interrupted)
        with pytest.raises(error):
            train(make_task(seed=1, num_steps=NUM_STEPS), tmp_path, SAVING)
    assert (tmp_path / "model.ckpt-3.manifest").exists(), "the step was whole, and is saved"
    assert found_wrong(tmp_path, 1, SAVING, num_steps=NUM_STEPS) is None
