"""A process that has imported everything once and forks children that run a piece of code: many for the price of one.

Its standard input has one JSON object a line, ``{"code": ..., "arguments": [...]}``; it answers with the child's
number, then each line that the child prints, and last ``{"status": ...}`` as `os.waitstatus_to_exitcode` has it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self


class Zygote:
    """The other end, in the tests."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).resolve())]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ,  # noqa: TID251 - a child's is its parent's
        )
        assert self.line() == "ready"

    def start(self, code: str, *arguments: str) -> int:
        """Starts a child; its process number."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"code": code, "arguments": arguments}) + "\n")
        self._process.stdin.flush()
        return int(self.line())

    def line(self) -> Any:
        """The next line that the child printed, or its status."""
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def run(self, code: str, *arguments: str) -> tuple[list[Any], int]:
        """Runs a child to its end: its lines and its status."""
        self.start(code, *arguments)
        lines = []
        while not isinstance(line := self.line(), dict):
            lines.append(line)
        return lines, line["status"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


def main() -> None:
    """Forks until its input ends."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    import torch._dynamo  # noqa: F401, PLC0415 - torch loads it at the first step otherwise, in every child

    import checkpoint.runs  # noqa: F401, PLC0415 - what children will need is there when they begin

    answer("ready")
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            answer(os.getpid())
            exec(order["code"], {"arguments": order["arguments"]})  # noqa: S102 - what the tests say
            sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        answer({"status": os.waitstatus_to_exitcode(status)})


def answer(value: object) -> None:
    """One line."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
