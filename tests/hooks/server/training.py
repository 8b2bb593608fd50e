"""A small training under control: steps that a test starts, and a saver that notes its calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from monolith.cluster import BarrierOp
from monolith.hook import HookedSession
from monolith.hooks.server import ServerCredentials, ServerHook
from monolith.testing import StepLoop


@dataclass
class Saver:
    """Counts saves; raises `error` if there is one."""

    steps: list[int] = field(default_factory=list)
    during_step: list[bool] = field(default_factory=list)
    error: Exception | None = None
    stepping: bool = False

    def trigger_save(self, session: HookedSession) -> None:
        self.during_step.append(self.stepping)
        if self.error is not None:
            raise self.error
        self.steps.append(session.global_step)


@dataclass
class Training:
    """What a test of the controller holds."""

    loop: StepLoop
    hook: ServerHook
    barrier: BarrierOp
    saver: Saver
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def step(self) -> None:
        """One step, as the training thread does it."""

        def body() -> None:
            self.saver.stepping = True
            self.saver.stepping = False

        self.loop.run(body)

    def run_in_background(self) -> None:
        """Steps until the training ends."""

        def steps() -> None:
            while not self.loop.stop_requested:
                self.step()

        self._thread = threading.Thread(target=steps, name="training")
        self._thread.start()

    def end(self) -> None:
        """Ends the steps in the background."""
        self.loop.request_stop()
        if self._thread is not None:
            self._thread.join(30)
            assert not self._thread.is_alive()


@contextmanager
def training(
    model_dir: str, *, num_workers: int = 1, credentials: ServerCredentials | None = None, **options: Any
) -> Iterator[Training]:
    """A session with a controller."""
    barrier, saver = BarrierOp(num_workers), Saver()
    hook = ServerHook(model_dir, barrier, saver, credentials=credentials, **options)
    with StepLoop([hook]) as loop:
        run = Training(loop, hook, barrier, saver)
        try:
            yield run
        finally:
            run.end()
