"""``monolith serve`` as processes: forks of one that has imported what they need.

Run as a program, this is that process. Its standard input has the arguments of a command as JSON, one a line; the
command answers with its process id, and then with where it listens. All of them end with the input.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch

from monolith import cli

WARM = ("monolith.cli.serve", "monolith.serving.server.http.protocol", "monolith.serving.task_model", "grpc_health.v1")
"""Imported before forks, as they take seconds."""


class CommandProcess(NamedTuple):
    """One command."""

    pid: int
    place: dict[str, Any]
    """What it told: ports, and its models."""

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    @property
    def address(self) -> str:
        """Of gRPC."""
        return f"127.0.0.1:{self.place['grpc_port']}"


class CommandProcesses:
    """The other end, in the tests."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve())], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def serve(self, *arguments: str) -> CommandProcess:
        """Returns when it listens."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        ports = ["--port", "0", "--grpc_port", "0", "--metrics_port", "0", "--json"]
        self._process.stdin.write(json.dumps(["serve", *arguments, *ports]) + "\n")
        self._process.stdin.flush()
        pid = int(self._process.stdout.readline())
        told = self._process.stdout.readline()
        assert told.startswith("{"), told
        return CommandProcess(pid, json.loads(told))

    def end(self, command: CommandProcess) -> int:
        """Its exit status, of SIGTERM."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command.pid) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def _run(arguments: list[str]) -> int:
    sys.stdout.write(f"{os.getpid()}\n")
    sys.stdout.flush()
    status = cli.main(arguments)
    if status:
        sys.stdout.write(f"it ended with {status}\n")
        sys.stdout.flush()
    return status


def _main() -> None:
    torch.set_num_threads(1)
    for name in WARM:
        importlib.import_module(name)
    children = set()
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, int):
            os.kill(asked, signal.SIGTERM)
            _, status = os.waitpid(asked, 0)
            children.discard(asked)
            sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
            sys.stdout.flush()
            continue
        child = os.fork()
        if child == 0:
            os._exit(_run(asked))
        children.add(child)
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


if __name__ == "__main__":
    _main()
