"""Ctrl-C before every line that a step runs: a signal may come between two statements that belong together."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from monolith import train as train_package
from monolith.hook import Hook, StepContext
from monolith.train import SavingConfig
from system.attack.attempt import Attempt
from system.attack.counted_run import found_wrong, make_task, train

_NUM_STEPS = 5
_HIT_AFTER_STEP = 3
_SAVING = SavingConfig(every_steps=2)
_DATA = 3
_FOLDER = str(Path(train_package.__file__).parent)


def attempts(seed: int, folder: Path) -> Iterator[Attempt]:
    """Interrupts at every line of `monolith.train` that one step runs, in random order; then ends."""
    counted = _Interrupt(at=None)
    train(_task(), folder / "counted", _SAVING, [counted])
    order = list(range(counted.lines))
    random.Random(f"{seed} lines").shuffle(order)  # noqa: S311 - an order to repeat, not a secret
    for line in order:
        yield _attempt(line, folder / str(line))


def _attempt(line: int, model_dir: Path) -> Attempt:
    interrupt = _Interrupt(at=line)
    outcome = "the run continued"
    try:
        train(_task(), model_dir, _SAVING, [interrupt])
    except KeyboardInterrupt:
        outcome = "interrupted"
    finally:
        sys.settrace(None)
    problem = found_wrong(model_dir, _DATA, _SAVING, num_steps=_NUM_STEPS)
    return Attempt(f"Ctrl-C before {interrupt.place or f'line {line} of a step'}", outcome, problem)


def _task() -> Any:
    return make_task(_DATA, num_steps=_NUM_STEPS)


class _Interrupt(Hook):
    """Counts the lines from the end of one step to the end of the next, and raises before one of them."""

    def __init__(self, at: int | None) -> None:
        self._at = at
        self.lines = 0
        self.place: str | None = None
        """File and line at which it was raised."""

    def after_run(self, context: StepContext) -> None:
        if context.global_step == _HIT_AFTER_STEP:
            sys.settrace(self._enter)
            frame: FrameType | None = sys._getframe()
            while frame is not None:
                if frame.f_code.co_filename.startswith(_FOLDER):
                    frame.f_trace = self._line
                frame = frame.f_back
        elif context.global_step == _HIT_AFTER_STEP + 1:
            sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        return self._line if frame.f_code.co_filename.startswith(_FOLDER) else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        if event == "line":
            if self.lines == self._at:
                self.place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                sys.settrace(None)
                self.lines += 1
                raise KeyboardInterrupt
            self.lines += 1
        return self._line
