"""Runs cases of synchronous training on several ranks: each case on all of them, one after the other.

As a program this file is all ranks: ``python sync_ranks.py <module> <folder> <case>...`` imports a module of this
folder and forks a process for each rank, which calls its ``case_...`` functions and writes what they return, or raise,
to ``<case>-<rank>.json``. Importing torch takes most of the time of a small run, so this file is itself a fork of a
process that has, and one start runs many cases. What ranks print is in ``output-<rank>.txt``.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

# As a program this is a fork that knows no path of the tests.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from monolith import collective, environment
from monolith.launch._tied import tie_to
from ports import free_port
from programs import Programs

LIMIT_SECONDS = 280


def run_ranks(
    programs: Programs, module: str, folder: Path, cases: list[str], *, size: int = 2, **variables: str
) -> list[tuple[int, str]]:
    """Runs the cases on `size` ranks; returns the exit code and output of each when all have ended."""
    folder.mkdir(parents=True, exist_ok=True)
    told = {
        "GLOO_SOCKET_IFNAME": "lo",
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        **variables,
    }
    ended = programs.run(Path(__file__).resolve(), module, str(folder), *cases, folder=folder, variables=told)
    assert ended.returncode == 0, ended.stderr
    codes = json.loads(ended.stdout)
    return [(code, (folder / f"output-{rank}.txt").read_text()) for rank, code in enumerate(codes)]


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
    signal.alarm(LIMIT_SECONDS)  # the ranks die with this process
    launcher = os.getpid()
    found = importlib.import_module(f"train.{module}")
    ranks = []
    for rank in range(int(environment.get("WORLD_SIZE") or 1)):
        process = os.fork()
        if process == 0:
            tie_to(launcher)
            become(rank, folder)
            run_cases(found, folder, cases)
            return
        ranks.append(process)
    codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in ranks]
    sys.stdout.write(json.dumps(codes))


def become(rank: int, folder: Path) -> None:
    """Makes this process a rank, as a launcher would."""
    torch.set_num_threads(1)
    environment.put("RANK", str(rank))
    environment.put("LOCAL_RANK", str(rank))
    with (folder / f"output-{rank}.txt").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
