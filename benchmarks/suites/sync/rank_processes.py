"""Ranks of a synchronous run as processes of this machine, measured alternately.

They are forks of this process, which has imported what they need and must not have computed anything. They rendezvous
at a store of this process, whose port the system chooses, as with torchrun. All make the same number of steps in a
turn; ranks without a turn wait for the next request.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # its stub does not export it

from benchmarks.suites.sync import ranks
from monolith.cli._bench.measurement import RowSkippedError
from monolith.launch.process import ForkedProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from monolith.cli._bench.setting import Setting

__all__ = ["RankTurn", "Ranks", "running_ranks"]

_END_SECONDS = 60.0
_MEETING_SECONDS = 300.0
_HERE = "127.0.0.1"


class RankTurn(NamedTuple):
    """Results of the ranks in a turn."""

    steps: int
    seconds: float
    """Time of the slowest rank."""
    cpu_seconds: float
    """Mean CPU time of a rank, all threads."""

    @property
    def rate(self) -> float:
        """Steps per second."""
        return self.steps / self.seconds

    @property
    def cpu_ms(self) -> float:
        """CPU time of a step of a rank."""
        return 1e3 * self.cpu_seconds / self.steps


class Ranks:
    """Some ranks that are ready to make steps."""

    def __init__(self, processes: Sequence[_Rank]) -> None:
        self._processes = processes
        self._step_seconds: dict[str, float] = {}

    def turn(self, seconds: float, way: str = "step") -> RankTurn:
        """Runs steps on all ranks concurrently, for about `seconds`.

        Args:
            seconds: The wanted length.
            way: Which kind of step, where the program has several.
        """
        if way not in self._step_seconds:
            self._step_seconds[way] = self._make(1, way).seconds
        turn = self._make(max(1, round(seconds / self._step_seconds[way])), way)
        self._step_seconds[way] = turn.seconds / turn.steps
        return turn

    def _make(self, steps: int, way: str) -> RankTurn:
        for process in self._processes:
            process.ask({"way": way, "steps": steps})
        answers = [process.answer() for process in self._processes]
        cpu = sum(each["cpu_seconds"] for each in answers) / len(answers)
        return RankTurn(steps, max(each["seconds"] for each in answers), cpu)


@contextmanager
def running_ranks(
    program: str, setting: Setting, *, count: int = 2, threads: int = 1, **options: Any
) -> Iterator[Ranks]:
    """Yields ranks 0 .. count - 1 that run a program of `ranks`, ready to make steps; they end with the block.

    Args:
        program: Name of the program.
        setting: Sizes.
        count: Number of ranks; 1: a process without a launcher.
        threads: Threads of each rank.
        options: Further options of the program.

    Raises:
        RowSkippedError: a rank raised it at its start.
    """
    store = TCPStore(_HERE, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=_MEETING_SECONDS))
    what = {"program": program, "threads": threads, "setting": setting.to_json(), "options": options}
    processes = [_Rank(rank, count, store.port) for rank in range(count)]
    try:
        for process in processes:
            process.ask(what)
        answers = [process.answer() for process in processes]
        skipped = next((each["skipped"] for each in answers if "skipped" in each), None)
        if skipped is not None:
            raise RowSkippedError(skipped)
        yield Ranks(processes)
    finally:
        for process in processes:
            process.hang_up()  # all of them: each waits for the others
        for process in processes:
            process.end()


class _Rank:
    """A fork with requests and responses as lines of JSON."""

    def __init__(self, rank: int, count: int, port: int) -> None:
        launched = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "MASTER_ADDR": _HERE,
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = ForkedProcess(
                ranks.answer_questions,
                [str(theirs.fileno())],
                output=sys.stderr.fileno(),  # what libraries print belongs to no report
                kept=theirs.fileno(),
                variables=launched if count > 1 else {},
            )
        self._socket, self._lines = ours, ours.makefile(encoding="utf-8")

    def ask(self, message: dict[str, Any]) -> None:
        """Sends one request; ignored by a rank that has ended."""
        with suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def answer(self) -> dict[str, Any]:
        """Returns the response to the next request.

        Raises:
            RuntimeError: the rank has ended.
        """
        line = self._lines.readline()
        if not line:
            raise RuntimeError("a rank of the benchmark ended; its error is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def hang_up(self) -> None:
        """Closes the input of the rank, which then ends."""
        self._lines.close()
        self._socket.close()

    def end(self) -> None:
        """Waits for its end, and not for ever."""
        watched = os.pidfd_open(self._process.pid)
        try:
            if not select.select([watched], [], [], _END_SECONDS)[0]:
                os.kill(self._process.pid, signal.SIGKILL)
        finally:
            os.close(watched)
        self._process.wait()
