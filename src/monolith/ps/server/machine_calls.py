"""Calls about the machine of a parameter server: its memory and its compute speed."""

from __future__ import annotations

import threading
from typing import Any

from monolith.errors import UnimplementedError
from monolith.observe.process_memory import resident_bytes
from monolith.ps.arithmetic import measure_throughput
from monolith.rpc.protos import parameter_server_pb2 as messages

__all__ = ["MachineCalls"]


class MachineCalls:
    """The methods of the service that are about the machine. Called by server threads.

    Args:
        memory_limit_bytes: Limit of resident memory; None: no limit.
    """

    def __init__(self, memory_limit_bytes: int | None) -> None:
        self._memory_limit_bytes = memory_limit_bytes
        self._benchmarks_end = threading.Event()

    def end_benchmarks(self) -> None:
        """Aborts running benchmarks and rejects new ones, because the process ends."""
        self._benchmarks_end.set()

    def Health(self, request: messages.HealthRequest) -> Any:  # noqa: ARG002, N802 - as on the wire
        """Returns resident memory and its limit; 0 on a system that does not report it, which cannot have a limit."""
        try:
            resident = resident_bytes()
        except UnimplementedError:
            resident = 0
        return messages.HealthResponse(resident_bytes=resident, limit_bytes=self._memory_limit_bytes or 0)

    def Benchmark(self, request: messages.BenchmarkRequest) -> Any:  # noqa: N802 - as on the wire
        """Runs a benchmark for some seconds."""
        return messages.BenchmarkResponse(throughput=measure_throughput(request.seconds, self._benchmarks_end.is_set))
