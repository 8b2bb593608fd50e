"""A follower in a process of its own, which reports when it had the rows of which step.

    python -m benchmarks.suites.online.follower_process LOG

It prints "ready" once it has loaded the log, follows until its input ends, and then prints step and time of every
increment that arrived since, as JSON. Times are those of `time.monotonic`, which all processes of a machine share.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.suites.online.followed_tables import TABLE, table_config
from benchmarks.suites.processes import child_environment
from monolith.cli._bench import ours
from monolith.online import Follower
from monolith.tables import LocalStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monolith.deltalog import Increment


class Arrival(NamedTuple):
    """An increment that a follower has applied."""

    step: int
    """Steps that are in it, and in those before it."""
    moment: float


@contextmanager
def follower_process(log: str) -> Iterator[list[Arrival]]:
    """Starts a follower that has loaded the log; the list is filled when the block ends."""
    command = [sys.executable, "-m", __name__, log]  # our own program
    arrivals: list[Arrival] = []
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=child_environment()
    ) as process:
        assert process.stdout is not None  # noqa: S101 - requested above
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"the follower of '{log}' did not start; its error is above")
        yield arrivals
        told, _ = process.communicate("")
    if process.returncode:
        raise RuntimeError(f"the follower of '{log}' ended with {process.returncode}; its error is above")
    arrivals += [Arrival(*each) for each in json.loads(told)]


def _follow(log: str) -> list[Arrival]:
    arrivals: list[Arrival] = []

    def note(found: Increment) -> None:
        arrivals.append(Arrival(found.step, time.monotonic()))

    ours.use_threads(1)
    with Follower(LocalStore({TABLE: table_config(serving=True)}), log, on_increment=note) as follower:
        follower.catch_up()
        arrivals.clear()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        follower.start()
        sys.stdin.read()
        follower.catch_up()  # to the end of what was written until then
    return arrivals


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_follow(sys.argv[1])))
