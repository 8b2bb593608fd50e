"""Workers of a job in processes of their own, which can be stopped and killed."""

from __future__ import annotations

import os
import signal
from typing import Any

from checkpoint.zygote import Zygote
from monolith.ps import PsCluster

_WORKER = """
import json, sys
from monolith.hooks import TrainingHooksHelper
from monolith.ps import JobClient, PsCluster
from monolith.testing import StepLoop

address, index, num_workers, lease_seconds, code = arguments
cluster = PsCluster([address])
job = JobClient(cluster, role="worker", index=int(index), num_workers=int(num_workers), address="there:1",
                lease_seconds=float(lease_seconds))
def say(value):
    print(json.dumps(value), flush=True)
job.wait_for(lambda _: job.is_connected, timeout_seconds=30)
say("joined")
exec(code)
job.close()
cluster.close()
"""


_HOME = """
import json, threading
from monolith.ps import PsServer

server = PsServer(0, num_ps=1)
print(json.dumps(server.address), flush=True)
threading.Event().wait()
"""


class HomeProcess:
    """A home server."""

    def __init__(self, zygote: Zygote) -> None:
        self._zygote = zygote
        self.pid = zygote.start(_HOME, beside=True)
        self.address = str(zygote.line())
        self._ended = False

    def kill(self) -> None:
        """Ends it without a word. Calling it again does nothing."""
        if not self._ended:
            self._ended = True
            self._zygote.end(self.pid)


class WorkerProcess:
    """A worker that joins and then runs a piece of code, in which it is ``job`` and may ``say`` something."""

    def __init__(
        self, zygote: Zygote, cluster: PsCluster, index: int, code: str, *, num_workers: int = 2, lease: float = 10.0
    ) -> None:
        self._zygote = zygote
        arguments = [cluster.addresses[0], str(index), str(num_workers), str(lease), code]
        self.pid = zygote.start(_WORKER, *arguments, beside=True)
        assert self.line() == "joined"
        self._ended = False

    def line(self) -> Any:
        """The next thing that it says."""
        return self._zygote.line()

    def stop(self) -> None:
        """It stands still, and does not know it."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """It runs again."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Ends it without a word. Calling it again does nothing."""
        if not self._ended:
            self._ended = True
            self._zygote.end(self.pid)
