"""Partially synchronous jobs: servers and ranks, each forked from one process that has imported everything."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Self

from checkpoint.zygote import Zygote
from ports import free_port

_PROCESS = """
import json, os, sys, threading, traceback
from pathlib import Path

folder, name, call, variables = Path(arguments[0]), arguments[1], arguments[2], json.loads(arguments[3])
os.environ.update(variables)

def tell(status):
    (folder / f"{name}.new").write_text(json.dumps(status))
    (folder / f"{name}.new").rename(folder / f"{name}.json")

def give_up():  # only to end a hang
    import faulthandler
    faulthandler.dump_traceback(file=log)
    tell("hangs")
    os._exit(9)

log = sys.stderr = open(folder / f"{name}.log", "a", buffering=1)
hang = threading.Timer(240, give_up)
hang.daemon = True
hang.start()
import logging
import torch
logging.basicConfig(level=logging.INFO, stream=log, format="%(asctime)s %(name)s %(message)s")
torch.set_num_threads(1)
from monolith import collective
from train import partial_cases
try:
    if name.startswith("ps"):
        status = partial_cases.serve(folder, int(name[2:]))
    else:
        collective.init(timeout_seconds=60)
        status = getattr(partial_cases, f"case_{call}")(folder)
        collective.shutdown()
except BaseException:
    status = traceback.format_exc()
tell(status)
"""


class PartialJob:
    """The processes of one job; a context manager that ends those that are left."""

    def __init__(self, zygote: Zygote, folder: Path, case: str) -> None:
        self.folder = folder / case
        self.folder.mkdir()
        self._zygote, self._case = zygote, case
        self.found: list[Any] = []
        """What its ranks returned, for tests that share them."""
        self._pids: list[int] = []

    def start_server(self, index: int) -> None:
        self._start(f"ps{index}", {})

    def run_ranks(self, size: int = 2, *, but: int | None = None) -> list[Any]:
        """What the case returns on each rank, when all have ended but one that kills itself."""
        port = str(free_port())
        for rank in range(size):
            told = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
            told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
            self._start(f"rank{rank}", told)
        return [self.wait_for(f"rank{rank}") for rank in range(size) if rank != but]

    def wait_for(self, name: str) -> Any:
        """How a process has ended."""
        path = self.folder / f"{name}.json"
        while not path.exists():  # it tells so itself when it hangs
            time.sleep(0.01)
        return json.loads(path.read_text(encoding="utf-8"))

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8")

    def _start(self, name: str, variables: dict[str, str]) -> None:
        (self.folder / f"{name}.json").unlink(missing_ok=True)
        arguments = (str(self.folder), name, self._case, json.dumps(variables))
        self._pids.append(self._zygote.start(_PROCESS, *arguments, beside=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self._pids:
            self._zygote.end(pid)
