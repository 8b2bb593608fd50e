"""Programs that run as the ranks of a run: one process each, without a launcher, met through a file.

Run as a program, this is the parent of the ranks: it forks one for each, of a process that has imported what they need.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Collection
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

# As a program this is a fork that knows no path of the tests.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from monolith import environment
from monolith.launch._tied import tie_to
from programs import Programs

LIMIT_SECONDS = 120
"""Ends hangs; nothing waits that long."""


def results(
    programs: Programs,
    program: Path,
    folder: Path,
    *arguments: str,
    size: int,
    ends: Collection[int] | None = None,
    variables: dict[str, str] | None = None,
) -> list[Any]:
    """Runs ``program FOLDER RANK SIZE ARGUMENTS...`` for each rank; returns what each has written by `write_result`.

    Args:
        programs: Runs them.
        program: What a rank is.
        folder: Where ranks meet, and write.
        arguments: Of the program.
        size: Number of ranks.
        ends: Ranks that end by themselves, and whose results are returned; the others are killed. None: all.
        variables: Variables of the environment of the ranks.
    """
    awaited = sorted(range(size) if ends is None else ends)
    ended = programs.run(
        Path(__file__).resolve(),
        *(json.dumps(awaited), str(size), str(program), str(folder), *arguments),
        folder=folder,
        variables={"GLOO_SOCKET_IFNAME": "lo", **(variables or {})},
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in awaited]


def meet(folder: Path, rank: int, num_ranks: int) -> None:
    """In a rank: makes the process group that `collective.init` joins."""
    limit = timedelta(seconds=LIMIT_SECONDS)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=num_ranks, timeout=limit
    )


def write_result(folder: Path, rank: int, result: object) -> None:
    """In a rank: leaves what `results` returns."""
    (folder / f"{rank}.json").write_text(json.dumps(result))


def main(awaited: list[int], size: int, program: str, folder: str, arguments: list[str]) -> None:
    """Forks the ranks, waits for some of them, and kills the others."""
    signal.alarm(LIMIT_SECONDS)  # the ranks die with this process
    launcher, processes = os.getpid(), []
    outputs = [Path(folder, f"output-{rank}.txt") for rank in range(size)]
    for rank in range(size):
        process = os.fork()
        if process == 0:
            become(rank, size, launcher, outputs[rank], [program, folder, str(rank), str(size), *arguments])
        processes.append(process)
    failed = [rank for rank in awaited if os.waitpid(processes[rank], 0)[1] != 0]
    for rank in set(range(size)) - set(awaited):
        os.kill(processes[rank], signal.SIGKILL)  # it is ours until it was waited for
        os.waitpid(processes[rank], 0)
    if failed:
        sys.exit("\n".join(f"rank {rank}: {outputs[rank].read_text()}" for rank in failed))


def become(rank: int, size: int, launcher: int, output: Path, command: list[str]) -> NoReturn:
    """Makes this process a rank, with the variables that a launcher sets."""
    status = 1
    try:
        tie_to(launcher)
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        torch.set_num_threads(1)
        if environment.get("MASTER_PORT") is not None:
            for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", size)):
                environment.put(name, str(value))
        sys.argv[:] = command
        runpy.run_path(command[0], run_name="__main__")
        status = 0
    except BaseException:  # noqa: BLE001 - it must not return into the code of its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:])
