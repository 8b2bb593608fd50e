"""Runs cases of synchronous training on several ranks: each case on all of them, one after the other.

As a program this file is one rank: ``python sync_ranks.py <module> <folder> <case>...`` imports a module of this
folder, calls its ``case_...`` functions and writes what they return, or raise, to ``<case>-<rank>.json``. Importing
torch takes most of the time of a small run, so that one start serves many cases.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from monolith import collective, environment

LIMIT_SECONDS = 280


def run_ranks(module: str, folder: Path, cases: list[str], *, size: int = 2, **variables: str) -> None:
    """Runs the cases on so many ranks; returns when all have ended, well or not."""
    folder.mkdir(parents=True, exist_ok=True)
    start_and_wait(module, folder, cases, size=size, variables=variables)


def start_rank(
    module: str, folder: Path, cases: list[str], *, rank: int, size: int, port: int, variables: dict[str, str]
) -> subprocess.Popen[str]:
    told = {
        **environment.starting_with(""),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "WORLD_SIZE": str(size),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        **variables,
    }
    command = [sys.executable, __file__, module, str(folder), *cases]
    return subprocess.Popen(command, env=told, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_and_wait(
    module: str, folder: Path, cases: list[str], *, size: int, variables: dict[str, str]
) -> list[tuple[int, str]]:
    """Exit codes and outputs of the ranks."""
    port = free_port()
    ranks = [
        start_rank(module, folder, cases, rank=rank, size=size, port=port, variables=variables) for rank in range(size)
    ]
    try:
        outputs = [rank.communicate(timeout=LIMIT_SECONDS)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    for number, output in enumerate(outputs):
        (folder / f"output-{number}.txt").write_text(output)
    return [(rank.returncode, output) for rank, output in zip(ranks, outputs, strict=True)]


def result_of(folder: Path, case: str, rank: int) -> Any:
    """What a case returned on a rank."""
    path = folder / f"{case}-{rank}.json"
    assert path.exists(), f"{case} did not end on rank {rank}:\n{(folder / f'output-{rank}.txt').read_text()}"
    found = json.loads(path.read_text())
    assert found["error"] is None, found["error"]
    return found["value"]


def results_of(folder: Path, case: str, size: int = 2) -> list[Any]:
    """What it returned on each rank."""
    return [result_of(folder, case, rank) for rank in range(size)]


def main(module: str, folder: Path, cases: list[str]) -> None:
    """One rank."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    found = importlib.import_module(f"train.{module}")
    collective.init(timeout_seconds=120)
    rank = collective.rank()
    for case in cases:
        own = folder / case
        own.mkdir(exist_ok=True)
        value, error = None, None
        try:
            value = getattr(found, f"case_{case}")(own)
        except BaseException:  # noqa: BLE001 - the test that asks for it tells it
            error = traceback.format_exc()
        (folder / f"{case}-{rank}.json").write_text(json.dumps({"value": value, "error": error}))
        if error is not None:
            sys.exit(f"{case} failed on rank {rank}: {error}")
    collective.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
