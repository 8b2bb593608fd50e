"""A process that has imported everything once and forks children that run a piece of code: many for the price of one.

Its standard input has one JSON object a line, ``{"code": ..., "arguments": [...]}``; it answers with the child's
number, then each line that the child prints, and last ``{"status": ...}`` as `os.waitstatus_to_exitcode` has it. A
child that runs ``"beside"`` others is not waited for: ``{"end": number}`` kills it, and answers with its status.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import traceback
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

    def start(self, code: str, *arguments: str, beside: bool = False) -> int:
        """Starts a child; its process number. No other runs until it has ended, unless it runs beside others."""
        self._order(code=code, arguments=arguments, beside=beside)
        return int(self.line())

    def end(self, child: int) -> int:
        """Kills a child that runs beside others, unless it has ended; its status."""
        self._order(end=child)
        return int(self.line()["status"])

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

    def _order(self, **order: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

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
    life, own_end = os.pipe()
    for line in sys.stdin:
        order = json.loads(line)
        child = order.get("end")
        if child is not None:
            os.kill(child, signal.SIGKILL)  # it is ours until it was waited for
        else:
            child = os.fork()
        if child == 0:
            os.close(own_end)
            threading.Thread(target=end_with, args=(life,), daemon=True).start()
            answer(os.getpid())
            os._exit(status_of(order))
        if not order.get("beside"):
            _, status = os.waitpid(child, 0)
            answer({"status": os.waitstatus_to_exitcode(status)})
    os._exit(0)  # it has nothing to put away, and its interpreter would take a while to


def status_of(order: dict[str, Any]) -> int:
    """Runs the code of an order; one that fails beside others says so, or its line would be awaited in vain."""
    try:
        exec(order["code"], {"arguments": order["arguments"]})  # noqa: S102 - what the tests say
    except BaseException:  # noqa: BLE001 - a child must not go on as its parent
        traceback.print_exc()
        if order.get("beside"):
            answer({"status": 1})
        return 1
    sys.stdout.flush()
    return 0


def end_with(life: int) -> None:
    """Ends a child with the process that it was forked from."""
    os.read(life, 1)
    os._exit(0)


def answer(value: object) -> None:
    """One line."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
