"""Exceptions from any place of a user's code: from building, the model, the input and every call of a hook."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from monolith.data.batch import Batch
from monolith.data.dataset import Dataset, Reading
from monolith.errors import AbortedError, ResourceExhaustedError, UnavailableError
from monolith.hook import Hook, HookedSession, StepContext
from monolith.train import Mode, Spec
from system.attack.attempt import Attempt
from system.attack.counted_run import NUM_STEPS, SAVINGS, found_wrong, make_task, train
from system.crash.tasks import CountingTask

_ENDING: tuple[type[BaseException], ...] = (
    *(RuntimeError, ValueError, MemoryError, KeyboardInterrupt, SystemExit),
    ResourceExhaustedError,
)
_STARTING_OVER: tuple[type[BaseException], ...] = (AbortedError, UnavailableError)
"""After these errors a session is rebuilt in place."""
_ONCE = ("build", "hook.begin", "hook.after_create_session", "hook.end")
_EVERY_STEP = (
    *("input before a batch", "input after a batch", "model", "backward", "before the dense step"),
    *("after the dense step", "hook.before_run", "hook.after_run"),
)


class _Fault:
    """Raises an error at one call of one place, once."""

    def __init__(self, place: str, call: int, error: type[BaseException]) -> None:
        self._place, self._left, self._error = place, call, error
        self.has_struck = False

    def pass_through(self, place: str) -> None:
        if place != self._place or self.has_struck:
            return
        if self._left == 0:
            self.has_struck = True
            raise self._error("made to fail")
        self._left -= 1


def attempts(seed: int, folder: Path) -> Iterator[Attempt]:
    """Lets a run fail once, and another one resume from its state."""
    draw = random.Random(f"{seed} failures")  # noqa: S311 - repeatable times, not secrets
    places = [*_ONCE, *_EVERY_STEP]
    draw.shuffle(places)
    # Every place with an error that ends a run, then every place with one after which it restarts, and so on.
    rounds = ((errors, place) for errors in itertools.cycle([_ENDING, _STARTING_OVER]) for place in places)
    for number, (errors, place) in enumerate(rounds):
        call = draw.randrange(NUM_STEPS) if place in _EVERY_STEP else 0
        error = draw.choice(errors)
        saving = SAVINGS[number % len(SAVINGS)]
        what = f"{error.__name__} from {place}, call {call}"
        yield _attempt(_Fault(place, call, error), error, what, folder / str(number), saving)


def _attempt(fault: _Fault, error: type[BaseException], what: str, model_dir: Path, saving: Any) -> Attempt:
    seed = len(what)
    outcome = "the run continued by itself"
    try:
        _FaultyTask.fault = fault
        train(make_task(seed, _FaultyTask), model_dir, saving, [_FaultyHook(fault)])
    except error:
        outcome = f"{error.__name__} reached the caller"
    if not fault.has_struck:
        return Attempt(what, "did not come to pass", "the place was never reached")
    return Attempt(what, outcome, found_wrong(model_dir, seed, saving))


class _FaultyTask(CountingTask):
    fault: _Fault

    def build(self) -> None:
        self.fault.pass_through("build")
        super().build()

    def model_fn(self, features: Any, mode: Mode) -> Spec:
        self.fault.pass_through("model")
        spec = super().model_fn(features, mode)
        assert spec.loss is not None
        spec.loss.register_hook(lambda _: self.fault.pass_through("backward"))  # type: ignore[no-untyped-call]
        return spec

    def optimizers(self, model: nn.Module) -> torch.optim.Optimizer:
        optimizer = super().optimizers(model)
        optimizer.register_step_pre_hook(lambda *_: self.fault.pass_through("before the dense step"))
        optimizer.register_step_post_hook(lambda *_: self.fault.pass_through("after the dense step"))
        return optimizer

    def input_fn(self, mode: Mode) -> Any:
        return _FaultyInput(super().input_fn(mode), self.fault)


class _FaultyInput(Dataset["Batch"]):
    def __init__(self, inner: Dataset[Batch], fault: _Fault) -> None:
        self._inner, self._fault = inner, fault

    def read(self, position: bytes | None = None) -> Reading[Batch]:
        return _FaultyReading(self._inner.read(position), self._fault)


class _FaultyReading(Reading["Batch"]):
    def __init__(self, inner: Reading[Batch], fault: _Fault) -> None:
        self._inner, self._fault = inner, fault

    def __next__(self) -> Batch:
        self._fault.pass_through("input before a batch")
        batch = next(self._inner)
        self._fault.pass_through("input after a batch")
        return batch

    @property
    def position(self) -> bytes:
        return self._inner.position

    def close(self) -> None:
        self._inner.close()


class _FaultyHook(Hook):
    def __init__(self, fault: _Fault) -> None:
        self._fault = fault

    def begin(self) -> None:
        self._fault.pass_through("hook.begin")

    def after_create_session(self, session: HookedSession) -> None:
        self._fault.pass_through("hook.after_create_session")

    def before_run(self, context: StepContext) -> None:
        self._fault.pass_through("hook.before_run")

    def after_run(self, context: StepContext) -> None:
        self._fault.pass_through("hook.after_run")

    def end(self, session: HookedSession) -> None:
        self._fault.pass_through("hook.end")
