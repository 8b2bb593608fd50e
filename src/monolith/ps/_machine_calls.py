"""What a parameter server says of the machine that it runs on: its memory, and how fast it computes."""

from __future__ import annotations

import threading
from typing import Any

from monolith.errors import UnimplementedError
from monolith.observe.process_memory import resident_bytes
from monolith.ps.arithmetic import measure_throughput
from monolith.ps.protos import parameter_server_pb2 as messages

__all__ = ["MachineCalls"]


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
        """Computes for some seconds."""
        return messages.BenchmarkResponse(throughput=measure_throughput(request.seconds, self._benchmarks_end.is_set))
