"""Runs Python programs as forks of one process that has imported what they import: many for the price of one start.

Run as a program, this is that process. Its standard input has one JSON object a line, the fields of `_Order`; it
answers with the exit status.
"""

from __future__ import annotations

import dataclasses
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Order:
    program: str
    arguments: list[str]
    folder: str
    """Where it runs."""
    output: str
    """File for what it prints."""
    errors: str
    variables: dict[str, str]


class Programs:
    """The other end, in the tests."""

    def __init__(self) -> None:
        self._process = self._started()

    def run(
        self, program: Path, *arguments: str, folder: Path, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """As ``python PROGRAM ARGUMENTS`` does, in a folder; what it has printed, and how it ended.

        Variables of the environment that a library reads when it is loaded, such as OMP_NUM_THREADS, hold for the
        processes that the program starts, and not for itself.
        """
        with tempfile.TemporaryDirectory() as files:
            output, errors = Path(files) / "output", Path(files) / "errors"
            order = _Order(
                program=str(program),
                arguments=list(arguments),
                folder=str(folder),
                output=str(output),
                errors=str(errors),
                variables=dict(variables or {}),
            )
            status = self._status(order)
            said = [path.read_text(encoding="utf-8", errors="replace") for path in (output, errors)]
        return subprocess.CompletedProcess([str(program), *arguments], status, *said)

    def _status(self, order: _Order) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(dataclasses.asdict(order)) + "\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())
        except BaseException:  # a time limit of the test: the program must not be in the way of the next one
            self._end()
            self._process = self._started()
            raise

    @staticmethod
    def _started() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ,  # noqa: TID251 - a child's is its parent's
        )

    def _end(self) -> None:
        self._process.kill()  # it has nothing to put away, and its interpreter would take a while to
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()


def main() -> None:
    """Forks until its input ends."""
    sys.path.insert(1, str(Path(__file__).resolve().parent.parent))  # `benchmarks` is imported from there
    import torch._dynamo  # noqa: F401, PLC0415 - torch loads it at the first step otherwise, in every fork

    import benchmarks.suites.sync.ranks  # noqa: F401, PLC0415 - what programs need is there when they begin
    import system.attack  # noqa: F401, PLC0415 - as above

    for line in sys.stdin:
        sys.stdout.write(f"{status_of(_Order(**json.loads(line)))}\n")
        sys.stdout.flush()


def status_of(order: _Order) -> int:
    """Of a program that has ended; it is a process of its own, as whoever started it would see it."""
    from monolith.launch.process import ForkedProcess  # noqa: PLC0415 - the tests need none of it

    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    output, errors = (os.open(path, flags, 0o600) for path in (order.output, order.errors))

    def body(arguments: Sequence[str]) -> int:
        os.dup2(errors, 2)
        os.close(errors)
        os.chdir(order.folder)
        sys.argv[:] = [order.program, *arguments]
        sys.path[0] = str(Path(order.program).resolve().parent)
        runpy.run_path(order.program, run_name="__main__")
        return 0

    process = ForkedProcess(body, order.arguments, output=output, kept=errors, variables=order.variables)
    os.close(output)
    os.close(errors)
    return process.wait()


if __name__ == "__main__":
    main()
