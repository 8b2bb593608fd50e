"""What a parameter server says of the machine that it runs on: its memory, and how fast it computes."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import torch

from monolith.errors import AbortedError, InvalidArgumentError, UnimplementedError
from monolith.observe.process_memory import resident_bytes
from monolith.ps.protos import parameter_server_pb2 as messages

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["MachineCalls"]

_LONGEST_BENCHMARK_SECONDS = 600.0
_SIDE = 256
"""Of the square matrix that the benchmark works on."""
_PIECES = 16
"""That it is split into, and put together from, in each round."""


class MachineCalls:
    """The methods of the service that are about the machine. Called by the threads of the server.

    Args:
        memory_limit_bytes: What the process may have in RAM; None: nobody has said.
    """

    def __init__(self, memory_limit_bytes: int | None) -> None:
        self._memory_limit_bytes = memory_limit_bytes
        self._benchmarks_end = threading.Event()

    def end_benchmarks(self) -> None:
        """Those that run end at once, and no other begins: the process is about to end."""
        self._benchmarks_end.set()

    def Health(self, request: messages.HealthRequest) -> Any:  # noqa: ARG002, N802 - as on the wire
        """Its memory, beside what it may have; 0 where the system does not say, which nobody can set a limit on."""
        try:
            resident = resident_bytes()
        except UnimplementedError:
            resident = 0
        return messages.HealthResponse(resident_bytes=resident, limit_bytes=self._memory_limit_bytes or 0)

    def Benchmark(self, request: messages.BenchmarkRequest) -> Any:  # noqa: N802 - as on the wire
        """Computes for some seconds; how many rounds a second there were."""
        if not 0 < request.seconds <= _LONGEST_BENCHMARK_SECONDS:
            raise InvalidArgumentError(
                f"benchmark: seconds above 0, and at most {_LONGEST_BENCHMARK_SECONDS}, expected, got {request.seconds}"
            )
        matrix = torch.rand(_SIDE, _SIDE)
        rounds, begin = 0, time.monotonic()
        while (elapsed := time.monotonic() - begin) < request.seconds or rounds == 0:
            if self._benchmarks_end.is_set():
                raise AbortedError("benchmark: the server ends; what it computed until now is of no use")
            matrix = _round(matrix)
            rounds += 1
        return messages.BenchmarkResponse(throughput=rounds / max(elapsed, 1e-9))


def _round(matrix: Tensor) -> Tensor:
    """Moves and computes every number once; they stay between 0 and 1."""
    return torch.cat(torch.split(matrix, _SIDE // _PIECES, dim=1)).sqrt().reshape(_SIDE, _SIDE)
