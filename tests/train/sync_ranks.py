"""Runs cases of synchronous training on several ranks: each case on all of them, one after the other.

As a program this file is all ranks: ``python sync_ranks.py <module> <folder> <case>...`` imports a module of this
folder and forks a process for each rank, which calls its ``case_...`` functions and writes what they return, or raise,
to ``<case>-<rank>.json``. Importing torch takes most of the time of a small run, so that one import serves all ranks,
and one start many cases. What ranks print is in ``output-<rank>.txt``.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from monolith import collective, environment
from ports import free_port

LIMIT_SECONDS = 280


def run_ranks(module: str, folder: Path, cases: list[str], *, size: int = 2, **variables: str) -> None:
    """Runs the cases on so many ranks; returns when all have ended, well or not."""
    folder.mkdir(parents=True, exist_ok=True)
    start_and_wait(module, folder, cases, size=size, variables=variables)


def start_and_wait(
    module: str, folder: Path, cases: list[str], *, size: int, variables: dict[str, str]
) -> list[tuple[int, str]]:
    """Exit codes and outputs of the ranks."""
    told = {
        **environment.starting_with(""),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        **variables,
    }
    command = [sys.executable, __file__, module, str(folder), *cases]
    ranks = subprocess.Popen(command, env=told, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        ended = ranks.communicate(timeout=LIMIT_SECONDS)[0]
    finally:
        with suppress(ProcessLookupError):  # all have ended
            os.killpg(ranks.pid, signal.SIGKILL)
        ranks.communicate()
    return [(code, (folder / f"output-{rank}.txt").read_text()) for rank, code in enumerate(json.loads(ended))]


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


def run_cases(found: ModuleType, folder: Path, cases: list[str]) -> None:
    """One rank."""
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


def main(module: str, folder: Path, cases: list[str]) -> None:
    """All ranks; prints their exit codes."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    found = importlib.import_module(f"train.{module}")
    importlib.import_module("torch._dynamo")  # which the first step of an optimizer does otherwise, on every rank
    ranks = []
    for rank in range(int(environment.get("WORLD_SIZE") or 1)):
        process = os.fork()
        if process == 0:
            become(rank, folder)
            run_cases(found, folder, cases)
            return
        ranks.append(process)
    codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in ranks]
    sys.stdout.write(json.dumps(codes))


def become(rank: int, folder: Path) -> None:
    """Makes this process a rank, as a launcher would."""
    environment.put("RANK", str(rank))
    environment.put("LOCAL_RANK", str(rank))
    with (folder / f"output-{rank}.txt").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
