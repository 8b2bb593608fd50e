"""The child of `trial.try_export`: reads an export from standard input, runs its graphs, and prints a verdict."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from monolith.errors import OpError
from monolith.export.allowed_operations import allow_operations
from monolith.export.export_folder import HeldFolder
from monolith.export.opened import OpenedExport

_CPU_SECONDS = 60
"""CPU time limit of the graphs, after the imports."""
_VERDICT_BYTES = 64 << 10
_TRIED_ROWS = (1, 3)


def main() -> None:
    """Tries one export."""
    began = time.monotonic()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_VERDICT_BYTES, _VERDICT_BYTES))
    os.nice(10)  # requests have priority
    head: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    signal.alarm(int(head["seconds"]))  # also if the parent process has died
    files = {name: sys.stdin.buffer.read(size) for name, size in head["files"].items()}
    allow_operations(*head["operations"])
    torch.set_num_threads(1)
    _limit(head["memory_bytes"])
    verdict: dict[str, Any] = {"refused": None}
    try:
        _run(OpenedExport(HeldFolder(head["path"], files)))
    except OpError as error:
        verdict = {"refused": error.message[:2000], "kind": type(error).__name__}
    except MemoryError:
        verdict = {"refused": f"export '{head['path']}': it takes more than {head['memory_bytes']} bytes", "kind": ""}
    verdict["seconds"] = time.monotonic() - began
    sys.stdout.write(json.dumps(verdict))
    sys.stdout.flush()
    os._exit(0)  # no code of the export runs at exit


def _limit(memory_bytes: int) -> None:
    mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + memory_bytes, mapped + memory_bytes))
    used = int(time.process_time()) + _CPU_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (used, used))


def _run(export: OpenedExport) -> None:
    weights = export.weights()
    for signature in sorted(export.signatures):
        graph = export.graph(signature, joins_rows=True)
        export.verify(signature, graph, weights)
        for rows in _TRIED_ROWS:
            export.try_rows(signature, graph, weights, rows)


if __name__ == "__main__":
    main()
