"""One process of a job that publishes, for tests that kill some; forked from one that has imported everything."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path

from monolith.cluster.discovery import HostServiceDiscovery
from monolith.hook import Hook, StepContext
from monolith.testing import ExampleTask
from monolith.train import JobProgramConfig, RunnerConfig, distributed_train

NUM_BATCHES = 40
STEPS_BEFORE = 15


class WaitForFile(Hook):
    """Stands still behind some steps of this process until a file is there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._steps = 0

    def after_run(self, context: StepContext) -> None:
        self._steps += 1
        while self._steps == STEPS_BEFORE and not self._path.exists():
            time.sleep(0.02)


def main(folder: str, role: str, index: str) -> None:
    """Runs to its end, and prints how it ended."""

    def tell(status: str) -> None:
        os.write(1, (json.dumps({"name": role + index, "status": status}) + "\n").encode())

    def give_up() -> None:  # only to end a hang
        tell("hangs")
        os._exit(9)

    hang = threading.Timer(120, give_up)
    hang.daemon = True
    hang.start()
    sys.stderr = Path(folder, f"{role}{index}.log").open("a", buffering=1)  # noqa: SIM115 - until the process ends
    made = ExampleTask.params()
    made.num_batches = NUM_BATCHES
    config = RunnerConfig(
        model_dir=f"{folder}/model",
        server_type=role,
        index=int(index),
        num_ps=2,
        num_workers=2,
        host="127.0.0.1",
        serve_controller=False,
        retry_wait_in_secs=0,
        enable_realtime_training=True,
        delta_log_interval_secs=0.1,
        recovery_interval_seconds=0.2,
        force_shutdown_ps=True,
    )
    settings = JobProgramConfig(query_failure_handler=lambda _: time.sleep(0.05))
    hooks = [WaitForFile(Path(folder, "go"))] if role == "worker" else []
    try:
        distributed_train(
            config, HostServiceDiscovery(f"{folder}/discovery"), made, user_hooks=hooks, settings=settings
        )
    except BaseException as error:
        traceback.print_exc(file=sys.stderr)
        tell(repr(error))
        raise
    tell("ended")
