"""One rank of a disturbed run: torchrun starts this file with ``FOLDER LAUNCH``."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from monolith import collective, environment
from monolith.train import distributed_sync_train
from monolith.train.compat.options import RunnerConfig
from system.crash.cluster_task import ClusterCountingTask, Disturbed
from system.crash.processes import KnownProcess
from system.crash.rank_trial import RankFolder

_POLL_SECONDS = 0.005


class _Limit:
    """Blocks at a position of the input until it is allowed."""

    def __init__(self, folder: RankFolder) -> None:
        self._folder = folder
        self._allowed = 0

    def wait_below(self, number: int) -> None:
        while number >= self._allowed:
            self._allowed = self._folder.allowed()
            if number >= self._allowed:
                time.sleep(_POLL_SECONDS)


def main(folder_path: str, launch: str) -> None:
    """Trains to the end of the input."""
    folder = RankFolder(Path(folder_path))
    given = folder.read_options()
    rank = int(environment.get("RANK") or 0)
    restart = int(environment.get("TORCHELASTIC_RESTART_COUNT") or 0)
    log = os.open(folder.log_of(int(launch), restart, rank), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def tell(what: dict[str, Any]) -> None:
        os.write(log, json.dumps(what).encode() + b"\n")

    logging.basicConfig(format=f"%(asctime)s rank {rank} %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    torch.set_num_threads(1)
    own = KnownProcess.of(os.getpid())
    assert own is not None
    tell({"pid": own.pid, "birth": own.birth, "size": int(environment.get("WORLD_SIZE") or 1)})
    collective.init(timeout_seconds=given["timeout_seconds"])
    Disturbed.limit, Disturbed.tell = _Limit(folder), tell
    params = ClusterCountingTask.params()
    for name, value in given["params"].items():
        params[name] = value
    distributed_sync_train(RunnerConfig(model_dir=str(folder.model_dir), **given["options"]), params)
    tell({"ended": True})


if __name__ == "__main__":
    main(*sys.argv[1:])
