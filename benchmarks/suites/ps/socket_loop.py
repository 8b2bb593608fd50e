"""The bare socket loop (`socket_loop.cpp`): the least that moving bytes between two processes costs."""

from __future__ import annotations

import subprocess
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, cast

from benchmarks.suites.processes import compile_program

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).parent / "socket_loop.cpp"


class StepBytes(NamedTuple):
    """What one step moves."""

    ask: int
    """To the server: ids."""
    rows: int
    """Back from it."""
    push: int
    """To the server: gradients."""

    @property
    def total(self) -> int:
        """In both directions."""
        return self.ask + self.rows + self.push


class Moved(NamedTuple):
    """What one step of the loop took."""

    cpu_seconds: float
    """Of both ends together."""
    wall_seconds: float


class SocketLoop:
    """The program, kept running so that it can take turns with ours."""

    def __init__(self, program: Path) -> None:
        # Our own program, just compiled.
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._ask, self._answers = cast("IO[str]", self._process.stdin), cast("IO[str]", self._process.stdout)

    def turn(self, size: StepBytes, *, buffers: int, steps: int) -> Moved:
        """Returns the mean of some steps, each with the next of `buffers` buffers; 1: they stay in the cache."""
        with suppress(BrokenPipeError):  # it has ended: then it does not answer either
            self._ask.write(f"{size.ask} {size.rows} {size.push} {buffers} {steps}\n")
            self._ask.flush()
        answer = self._answers.readline().split()
        if len(answer) != 2:
            raise RuntimeError("the socket loop ended; its error is above")
        return Moved(float(answer[0]) / steps, float(answer[1]) / steps)

    def close(self) -> None:
        """Ends the program."""
        with suppress(BrokenPipeError):
            self._ask.close()
        self._answers.close()
        self._process.wait()


@contextmanager
def running_loop() -> Iterator[SocketLoop]:
    """The loop, compiled and started; ends with the block.

    Raises:
        RowSkippedError: there is no compiler.
    """
    with tempfile.TemporaryDirectory(prefix="monolith-socket-loop-") as folder:
        loop = SocketLoop(compile_program(SOURCE, Path(folder), "-O2"))
        try:
            yield loop
        finally:
            loop.close()
