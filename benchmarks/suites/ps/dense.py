"""Dense weights pulled from a server and gradients pushed to it, against a bare socket that moves the bytes."""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING

import torch
from torch import nn

from benchmarks.suites.processes import cpu_seconds
from benchmarks.suites.ps.servers import running_servers
from benchmarks.suites.ps.socket_loop import StepBytes, running_loop
from monolith.cli._bench import ours
from monolith.cli._bench.measurement import Measurement, Sense, median_ratio, spread
from monolith.cli._bench.timing import WARM_UP_STEPS, quiet_collector
from monolith.ps import PsCluster
from monolith.ps.dense.client import DenseClient
from monolith.tables.batch import BatchStamp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.suites.ps.socket_loop import Moved
    from monolith.cli._bench.setting import Setting

MATRICES, SIDE = 5, 1000
"""Number of weights of each: 20 MB in total."""
LIMIT = 1.6
ASK_BYTES = 64


class DenseSteps:
    """Pulls of all weights and pushes of all gradients, each waited for."""

    def __init__(self, client: DenseClient, pids: Sequence[int]) -> None:
        self._client, self._pids = client, pids
        self._next = client.join(0).next_seq
        for parameter in client.parameters.values():
            parameter.grad = torch.full_like(parameter, 1e-3)

    def turn(self, seconds: float) -> tuple[float, float]:
        """Wall and processor time of the mean step of about `seconds`; the latter of both ends."""
        for _ in range(WARM_UP_STEPS):
            self._step()
        count, begun, spent = 0, time.perf_counter(), cpu_seconds(self._pids)
        while (elapsed := time.perf_counter() - begun) < seconds or count == 0:
            self._step()
            count += 1
        return elapsed / count, (cpu_seconds(self._pids) - spent) / count

    def _step(self) -> None:
        self._client.pull()
        self._client.push(BatchStamp(worker=0, seq=self._next), step=self._next).result()
        self._next += 1


def measure(setting: Setting) -> list[Measurement]:
    """Measures one worker and one server; plain gradient descent, so that the optimizer's own work is small."""
    ours.use_threads(1)
    side = SIDE if setting.large_rows >= 1_000_000 else 10
    model = nn.ParameterList(nn.Parameter(torch.zeros(side, side)) for _ in range(MATRICES))
    num_bytes = 4 * MATRICES * side * side
    size = StepBytes(ask=ASK_BYTES, rows=num_bytes, push=num_bytes)
    mine, moved = list[tuple[float, float]](), list["Moved"]()
    with running_loop() as loop, running_servers(1, threads=1) as servers, PsCluster(servers.addresses) as cluster:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        with DenseClient(model, optimizer, cluster) as client, quiet_collector():
            steps = DenseSteps(client, [os.getpid(), *servers.pids])
            for _ in range(setting.rounds):
                mine.append(steps.turn(setting.seconds))
                moved.append(loop.turn(size, buffers=1, steps=max(1, int(setting.seconds * 50))))
    wall, bare = [1e3 * each for each, _ in mine], [1e3 * each.wall_seconds for each in moved]
    cpu, bare_cpu = [1e3 * each for _, each in mine], [1e3 * each.cpu_seconds for each in moved]
    return [
        Measurement(
            row="ps_dense",
            measure=f"dense pull + push of {num_bytes / 1e6:.3g} MB, one server",
            figure=statistics.median(wall),
            unit="ms",
            peer="bare socket loop",
            peer_figure=statistics.median(bare),
            ratio=median_ratio(wall, bare),
            limit=LIMIT,
            sense=Sense.AT_MOST,
            note=f"with the update itself, of SGD; ours {spread(wall)} ms, bare {spread(bare)} ms;"
            f" processor time of both ends {statistics.median(cpu):.1f} and {statistics.median(bare_cpu):.1f} ms",
        )
    ]
