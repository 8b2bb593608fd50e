"""Whole jobs of `monolith.testing.distributed_binary`: each process is forked from one that has imported everything."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from checkpoint.zygote import Zygote

_PROCESS = """
import json, os, sys, threading
from monolith.testing import distributed_binary

log, name, *flags = arguments

def tell(status):
    os.write(1, (json.dumps({"name": name, "status": status}) + "\\n").encode())  # whole, beside those of others

def give_up():  # only to end a hang
    tell("hangs")
    os._exit(9)

hang = threading.Timer(120, give_up)
hang.daemon = True
hang.start()
sys.stderr = open(log, "w", buffering=1)
try:
    status = distributed_binary.main(flags)
except BaseException as error:
    import traceback
    traceback.print_exc()
    status = repr(error)
tell(status)
"""


class Job:
    """The processes of one job; a context manager that ends those that are left."""

    def __init__(self, zygote: Zygote, folder: Path, case: str, **numbers: int) -> None:
        self.folder = folder / case
        self.folder.mkdir()
        self._zygote = zygote
        self._case, self._numbers = case, numbers
        self.statuses: dict[str, Any] = {}
        """Name of a process, such as ``ps0``, to how it has ended: 0, or what went wrong."""
        self._pids: dict[str, int] = {}

    @property
    def model_dir(self) -> Path:
        """Where the job saves."""
        return self.folder / "model"

    def start(self, server_type: str, index: int) -> None:
        """Starts one process."""
        name = f"{server_type}{index}"
        flags = ["--test_case", self._case, "--test_dir", str(self.folder.parent)]
        flags += ["--server_type", server_type, "--index", str(index), "--uuid", "run"]
        flags += [text for flag, number in self._numbers.items() for text in (f"--{flag}", str(number))]
        self._pids[name] = self._zygote.start(_PROCESS, str(self._log(name)), name, *flags, beside=True)

    def start_all(self) -> None:
        """Starts all of them, workers first: any order will do."""
        for index in range(self._numbers["num_workers"]):
            self.start("worker", index)
        given = ("num_ps", "num_extra_ps", "num_redundant_ps")
        for index in range(sum(self._numbers.get(name, 0) for name in given)):
            self.start("ps", index)

    def wait_for(self, server_type: str) -> dict[str, Any]:
        """Waits until all processes of a role have ended; how."""
        self.wait_for_any(server_type, sum(name.startswith(server_type) for name in self._pids))
        return {name: status for name, status in self.statuses.items() if name.startswith(server_type)}

    def wait_for_any(self, server_type: str, count: int) -> None:
        """Waits until so many processes of a role have ended."""
        while sum(name.startswith(server_type) for name in self.statuses) < count:
            told = self._zygote.line()
            self.statuses[told["name"]] = told["status"]

    def log(self, name: str) -> str:
        """What a process has written."""
        return self._log(name).read_text(encoding="utf-8")

    def logs(self) -> str:
        """What all of them have written, for a test that fails."""
        return "\n".join(f"== {name}\n{self.log(name)}" for name in self._pids)

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self._pids.values():
            self._zygote.end(pid)
