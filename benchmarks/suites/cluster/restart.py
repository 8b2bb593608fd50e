"""A server that was killed, until it takes a push again, against a restore of an empty one by its chief."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import IO, TYPE_CHECKING, cast

import torch

import monolith as ml
from benchmarks.suites.table_steps import FILLER, TableSteps
from monolith.checkpoint import Saver, TrainState
from monolith.cli._bench import machine, ours
from monolith.cli._bench.measurement import Measurement, spread, tell
from monolith.nn.table_defaults import TableDefaults, use_table_defaults
from monolith.ps import PsCluster, PsStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from monolith.cli._bench.setting import Setting

FACTOR, MORE_SECONDS = 1.3, 3.0
INTERVAL_SECONDS = 1.0
STEPS_AFTER_SAVE = 50


def measure(setting: Setting) -> list[Measurement]:
    """Measures with a cold page cache; a restart includes the start of the process."""
    ours.use_threads(setting.threads)
    needed = setting.large_rows * 500
    with machine.scratch_folder(setting.directory, needed_bytes=needed) as folder, ExitStack() as running:
        model, record = folder / "model", folder / "record"
        server = Restarted(model, record, threads=setting.threads)
        running.callback(server.kill)
        tell(f"    filling and saving {setting.large_rows:,} rows")
        _prepare(server, model, setting.large_rows)
        restarts, restores = [], []
        for _ in range(min(3, setting.rounds)):
            restarts.append(server.restart_seconds())
            restores.append(_restore_seconds(model, threads=setting.threads))
    restore = statistics.median(restores)
    return [
        Measurement(
            row="job_restart",
            measure=f"SIGKILL of a server with {setting.large_rows:,} rows, to its first applied push",
            figure=statistics.median(restarts),
            unit="s",
            peer="restore of an empty server",
            peer_figure=restore,
            ratio=(FACTOR * restore + MORE_SECONDS) / statistics.median(restarts),
            limit=1.0,
            note=f"allowed: {FACTOR} x restore + {MORE_SECONDS:g} s; restarts {spread(restarts)}, restores"
            f" {spread(restores)}",
        )
    ]


class Restarted:
    """A server that is killed and restarts from its checkpoint and its record.

    Args:
        model_dir: Model directory of the checkpoint.
        record: Folder of its record; None: no record.
        threads: Number of threads that serve batches.
    """

    def __init__(self, model_dir: Path, record: Path | None, *, threads: int) -> None:
        self._options = ["--index", "0", "--num_ps", "1", "--threads", str(threads), "--drain_seconds", "0", "--json"]
        if record is not None:
            self._options += ["--recovery_dir", str(record), "--model_dir", str(model_dir)]
            self._options += ["--recovery_interval_seconds", str(INTERVAL_SECONDS)]
        self._folders = [model_dir, *([] if record is None else [record])]
        self._start()

    address: str

    def restart_seconds(self) -> float:
        """Kills it; how long until it has taken a push of a worker that joins again."""
        machine.forget_pages([file for folder in self._folders for file in machine.files_under(folder)])
        began = time.perf_counter()
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._start()
        with model_on(self.address) as emb:
            steps_of(emb).train_ids(torch.arange(1000))
        return time.perf_counter() - began

    def kill(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.communicate()

    def _start(self) -> None:
        # The interpreter that runs us, on a command of this package.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "monolith", "ps", *self._options], stdout=subprocess.PIPE, text=True
        )
        self.address = json.loads(cast("IO[str]", self._process.stdout).readline())["address"]


@contextmanager
def model_on(address: str) -> Iterator[ml.Embeddings]:
    """A module with one table on a server."""
    with PsCluster([address]) as cluster:
        with use_table_defaults(TableDefaults(store=partial(PsStore, servers=cluster))):
            emb = ml.Embeddings({"ids": ml.Slot(ours.DIM)}, ml.row_optimizers.Adagrad(learning_rate=0.1))
        with closing(emb.store):
            yield emb


def steps_of(emb: ml.Embeddings) -> TableSteps:
    """Of worker 0, past its gradients: they change nothing."""
    return TableSteps(emb.store, 0, torch.zeros(ours.ROW_STEP * ours.DIM))


def _prepare(server: Restarted, model: Path, num_rows: int) -> None:
    with model_on(server.address) as emb:
        filler = TableSteps(emb.store, FILLER, torch.zeros(ours.ROW_STEP * ours.DIM))
        for begin in range(0, num_rows, ours.ROW_STEP):  # ids of a slot, not any numbers
            filler.train_ids(torch.arange(begin, min(begin + ours.ROW_STEP, num_rows)))
        with Saver(model) as saver:
            saver.save(TrainState(model=emb))
        steps = steps_of(emb)
        for number in range(STEPS_AFTER_SAVE):
            steps.train_ids(torch.arange(number * 1000, number * 1000 + 20_000))
        time.sleep(2 * INTERVAL_SECONDS)


def _restore_seconds(model: Path, *, threads: int) -> float:
    """Returns what a chief needs to restore an empty server that is up already."""
    server = Restarted(model, None, threads=threads)
    try:
        with model_on(server.address) as emb, Saver(model) as saver:
            machine.forget_pages(machine.files_under(model))
            began = time.perf_counter()
            saver.restore(TrainState(model=emb))
            return time.perf_counter() - began
    finally:
        server.kill()
