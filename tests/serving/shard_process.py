"""Shards as processes: forks of one that has imported what they need.

Run as a program, this is that process. Its standard input has the arguments of a shard as JSON, one a line; the shard
answers with its process id and address. All of them end with the input.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch

from monolith.serving.shards.served_shard import serve_shard
from monolith.tables import Segment, TableConfig


class ShardProcess(NamedTuple):
    """One shard."""

    pid: int
    address: str

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)


class ShardProcesses:
    """The other end, in the tests."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve())], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, **arguments: Any) -> ShardProcess:
        """As `serve_shard`; `dims` are those of tables that rows are pushed to."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        return ShardProcess(**json.loads(self._process.stdout.readline()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def _serve(arguments: dict[str, Any]) -> None:
    dims = arguments.pop("dims", None)
    if dims is not None:
        configs = {name: TableConfig([Segment(dim)], serving=True, skip_zero=True) for name, dim in dims.items()}
        arguments["tables"] = {"model": configs}
    served = serve_shard(**arguments)
    sys.stdout.write(json.dumps({"pid": os.getpid(), "address": served.server.address}) + "\n")
    sys.stdout.flush()
    served.server.wait()


def _main() -> None:
    torch.set_num_threads(1)
    children = []
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _serve(json.loads(line))
            os._exit(0)
        children.append(child)
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


if __name__ == "__main__":
    _main()
