"""Shards as processes. Run as a program, this is one: its argument is those of `serve_shard`, as JSON."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from monolith.serving.shards.served_shard import serve_shard


class ShardProcess:
    """One shard."""

    def __init__(self, **arguments: Any) -> None:
        command = [sys.executable, str(Path(__file__).resolve()), json.dumps(arguments)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().rstrip("\n")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


class ShardProcesses:
    """Some shards, which are killed at the end."""

    def __init__(self) -> None:
        self._shards: list[ShardProcess] = []

    def start(self, **arguments: Any) -> ShardProcess:
        """As `serve_shard`; returns when it listens."""
        self._shards.append(ShardProcess(**arguments))
        return self._shards[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._shards:
            each.process.kill()
            each.process.communicate()


if __name__ == "__main__":
    served = serve_shard(**json.loads(sys.argv[1]))
    sys.stdout.write(f"{served.server.address}\n")
    sys.stdout.flush()
    served.server.wait()
