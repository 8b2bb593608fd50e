"""A run that exports its model and publishes a delta log, as a process next to the one that serves."""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import TYPE_CHECKING, Any, Self

import torch

from benchmarks.suites.serving.served_deepfm import batch_of, exported, filled_session, ids_of_a_slot
from monolith.cli._bench import ours
from monolith.online import DeltaPublisher

if TYPE_CHECKING:
    from pathlib import Path

    from monolith.cli._bench.setting import Setting

INTERVAL = 0.1
_NICE = 19
"""Niceness of the process: with two cores the client shares its core with it, and must not wait for it."""
_EXAMPLES = 50
"""Number of examples of a step between two increments; each has rows in every slot."""


class PublishingProcess:
    """A process whose export and base of the log are on disk once constructed; a context manager. Not thread-safe.

    Args:
        setting: Number of rows.
        folder: Folder of its files.
    """

    def __init__(self, setting: Setting, folder: Path) -> None:
        self.export = str(folder / "export")
        self.log = str(folder / "log")
        forking = multiprocessing.get_context("fork")
        self._pipe, theirs = forking.Pipe()
        self._process = forking.Process(target=_run, args=(theirs, setting.small_rows, folder), daemon=True)
        self._process.start()
        self._expect("ready")

    def begin(self) -> None:
        """Steps and increments from now on."""
        self._pipe.send("begin")

    def end(self) -> None:
        """Stops publishing."""
        self._pipe.send("end")
        self._expect("ended")

    def _expect(self, word: str) -> None:
        if (told := self._pipe.recv()) != word:
            raise RuntimeError(f"the process that publishes: {told}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()


def _run(pipe: Any, num_rows: int, folder: Path) -> None:
    try:
        ours.use_threads(1)
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[1:] or cores)  # the first one is the server's
        os.nice(_NICE)
        _publish(pipe, num_rows, folder)
    except Exception as error:  # noqa: BLE001 - raised again in the caller
        pipe.send(f"{type(error).__name__}: {error}")


def _publish(pipe: Any, num_rows: int, folder: Path) -> None:
    with filled_session(num_rows) as session:
        exported(session, folder / "export")
        publisher = DeltaPublisher(session.state.stores, str(folder / "log"), interval=INTERVAL)
        publisher.publish()
        pipe.send("ready")
        random = torch.Generator().manual_seed(0)
        while pipe.recv() == "begin":
            while not pipe.poll():
                due = time.monotonic() + INTERVAL
                session.run(batch_of(torch.randint(ids_of_a_slot(num_rows), (_EXAMPLES,), generator=random)))
                publisher.publish()
                time.sleep(max(0.0, due - time.monotonic()))
            pipe.recv()
            pipe.send("ended")
