"""``monolith serve`` as processes, which find the tasks of this folder."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from monolith import environment


class CommandProcess:
    """One command, which listens."""

    def __init__(self, *arguments: str) -> None:
        ports = ["--port", "0", "--grpc_port", "0", "--metrics_port", "0", "--json"]
        command = [sys.executable, "-m", "monolith", "serve", *arguments, *ports]
        variables = {**environment.starting_with(""), "PYTHONPATH": str(Path(__file__).parent)}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=variables, text=True)
        assert self.process.stdout is not None
        told = self.process.stdout.readline()
        assert told.startswith("{"), f"it ended with {self.process.wait()}"
        self.place: dict[str, Any] = json.loads(told)
        """Its ports and models."""

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    @property
    def address(self) -> str:
        """Of gRPC."""
        return f"127.0.0.1:{self.place['grpc_port']}"


class CommandProcesses:
    """Some commands. Those that still run are killed at the end."""

    def __init__(self) -> None:
        self._commands: list[CommandProcess] = []

    def serve(self, *arguments: str) -> CommandProcess:
        """Returns when it listens."""
        self._commands.append(CommandProcess(*arguments))
        return self._commands[-1]

    @staticmethod
    def end(command: CommandProcess) -> int:
        """Its exit status, of SIGTERM."""
        command.send(signal.SIGTERM)
        return command.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._commands:
            each.process.kill()
            each.process.communicate()
