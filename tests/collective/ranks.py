"""Programs that run as the ranks of a run: one process each, without a launcher, met through a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from monolith import environment

LIMIT_SECONDS = 120
"""Ends hangs; nothing waits that long."""


@contextmanager
def started(program: Path, num_ranks: int, folder: Path, *arguments: str) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes of ``program FOLDER RANK NUM_RANKS ARGUMENTS...``; they are gone afterwards."""
    variables = {**environment.starting_with(""), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    variables["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, str(program), str(folder)]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(num_ranks), *arguments],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(num_ranks)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


def results(program: Path, num_ranks: int, folder: Path, *arguments: str) -> list[Any]:
    """What each rank has written by `write_result`."""
    with started(program, num_ranks, folder, *arguments) as processes:
        for rank, process in enumerate(processes):
            output, _ = process.communicate(timeout=LIMIT_SECONDS)
            assert process.returncode == 0, f"rank {rank}: {output}"
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(num_ranks)]


def meet(folder: Path, rank: int, num_ranks: int) -> None:
    """In a rank: makes the process group that `collective.init` joins."""
    limit = timedelta(seconds=LIMIT_SECONDS)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=num_ranks, timeout=limit
    )


def write_result(folder: Path, rank: int, result: object) -> None:
    """In a rank: leaves what `results` returns."""
    (folder / f"{rank}.json").write_text(json.dumps(result))
