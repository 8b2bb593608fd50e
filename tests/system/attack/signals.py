"""Signals at random times of a training, most inside a save: SIGTERM, and Ctrl-C once, twice and unhandled."""

from __future__ import annotations

import io
import itertools
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monolith.hook import Hook, HookedSession
from monolith.hooks.stopping import StopOnSignal
from monolith.observe.progress import Progress
from monolith.train import SavingConfig
from system.attack.attempt import Attempt
from system.attack.counted_run import SAVINGS, end_of, found_wrong_anew, make_task, train
from system.crash.processes import Child, Tell
from system.crash.trial import is_inside_save, newest

_POLL_SECONDS = 0.0005
_SHARE_IN_SAVES = 0.6
_LONGEST_WAIT_SECONDS = 0.4


@dataclass(frozen=True, slots=True)
class _Hit:
    """The signals, and whether the program handles them as ``monolith train`` does."""

    name: str
    signals: tuple[signal.Signals, ...]
    listens: bool


_HITS = (
    _Hit("SIGTERM", (signal.SIGTERM,), listens=True),
    _Hit("Ctrl-C", (signal.SIGINT,), listens=True),
    _Hit("Ctrl-C twice", (signal.SIGINT, signal.SIGINT), listens=True),
    _Hit("Ctrl-C in a program of its own", (signal.SIGINT,), listens=False),
)


def attempts(seed: int, folder: Path) -> Iterator[Attempt]:
    """Hits runs several times each; every run then ends and is checked."""
    draw = random.Random(f"{seed} signals")  # noqa: S311 - repeatable times, not secrets
    for number in itertools.count():
        model_dir, saving = folder / str(number), SAVINGS[number % len(SAVINGS)]
        data = draw.randrange(1 << 31)
        for _ in range(draw.randint(2, 4)):
            yield _attempt(draw.choice(_HITS), model_dir, data, saving, draw)
        problem = found_wrong_anew(model_dir, data, saving)
        yield Attempt(f"run {number}", "ended with every example once", problem)


def _attempt(hit: _Hit, model_dir: Path, data: int, saving: SavingConfig, draw: random.Random) -> Attempt:
    child = Child(lambda tell: _train(tell, hit, model_dir, data, saving))
    try:
        _wait_for_moment(child, model_dir, draw)
        inside = is_inside_save(model_dir)
        for number in hit.signals:
            child.send(number)
            time.sleep(draw.uniform(0.0, 0.005))
        told = end_of(child)
    except RuntimeError as error:
        return Attempt(hit.name, "failed", str(error))
    finally:
        child.close()
    what = f"{hit.name} {'inside a save' if inside else 'between saves'}"
    stopped_at = told.get("result", {}).get("stopped_at")
    if stopped_at not in {None, newest(model_dir)}:
        return Attempt(what, "stopped", f"stopped after step {stopped_at}, the checkpoint is of {newest(model_dir)}")
    return Attempt(what, what if "result" in told else "ended before it was hit")


def _train(tell: Tell, hit: _Hit, model_dir: Path, data: int, saving: SavingConfig) -> dict[str, Any]:
    """Trains in the child, and returns how the training ended."""
    stop = StopOnSignal(Progress(total=None, file=io.StringIO()))
    hooks = [_TellStart(tell), *([stop] if hit.listens else [])]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # otherwise background jobs of a shell ignore it
    try:
        try:
            step = train(make_task(data), model_dir, saving, hooks)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:  # a second one may arrive while the first propagates, and none after that
        return {"interrupted": True}
    return {"stopped_at": step if stop.received is not None and step else None}


def _wait_for_moment(child: Child, model_dir: Path, draw: random.Random) -> None:
    def wait(while_: Callable[[], bool], seconds: float = float("inf")) -> None:
        until = time.monotonic() + seconds
        while while_() and time.monotonic() < until and not child.has_ended():
            time.sleep(_POLL_SECONDS)

    wait(lambda: "started" not in child.told())
    if draw.random() >= _SHARE_IN_SAVES:
        wait(lambda: True, draw.uniform(0.0, _LONGEST_WAIT_SECONDS))
        return
    for _ in range(draw.randint(1, 3)):
        wait(lambda: is_inside_save(model_dir))
        wait(lambda: not is_inside_save(model_dir))
    wait(lambda: is_inside_save(model_dir), draw.uniform(0.0, 0.01))


class _TellStart(Hook):
    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def after_create_session(self, session: HookedSession) -> None:
        self._tell({"started": session.global_step})
