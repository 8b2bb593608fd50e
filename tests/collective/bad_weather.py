"""A rank that something happens to in the middle of an exchange, and what the others see: for `test_bad_weather.py`.

Rank 1 is the one. Where it lives on it does not end before the others have seen what they see.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from collective import ranks
from monolith import collective
from monolith.collective import Agreed, Call, LockStep

VICTIM = 1


def killed(_: Agreed) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stopped(_: Agreed) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def failing(_: Agreed) -> None:
    raise ZeroDivisionError("on this rank alone")


HAPPENINGS: dict[str, Callable[[Agreed], None]] = {"killed": killed, "stopped": stopped, "failing": failing}


def failure_of(call: Callable[[], object]) -> dict[str, str]:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - it is what the test looks at
        return {"kind": type(error).__name__, "text": str(error)}
    return {"kind": "none", "text": ""}


def weather(folder: Path, rank: int, size: int, happening: str, timeout_seconds: float) -> dict[str, object]:
    """A run of its own, and what this rank saw in it."""
    folder.mkdir(exist_ok=True)
    ranks.meet(folder, rank, size)
    collective.init(timeout_seconds=timeout_seconds)
    step = LockStep(collective.training_line())
    wire = collective.training_line().wire

    def gather(_: Agreed) -> None:
        wire.gather(torch.ones(100_000))  # needs every rank

    collective.barrier()
    first = {"kind": "none", "text": ""}
    if rank != VICTIM:
        first = failure_of(lambda: step.call(Call("read", "rows"), work=gather).result())
    elif happening == "not following":
        first = failure_of(lambda: step.follow({"write": lambda _agreed, _arguments: None}).result())
    elif happening in HAPPENINGS:
        first = failure_of(lambda: step.call(Call("read", "rows"), work=HAPPENINGS[happening]).result())
    else:
        collective.shutdown()
    later = failure_of(lambda: collective.allgather(torch.ones(1)))
    collective.shutdown()
    alive = [thread.name for thread in threading.enumerate() if thread.name.startswith("monolith")]
    (folder / f"{rank} is through").touch()
    while not all((folder / f"{other} is through").exists() for other in range(size) if other != VICTIM):
        time.sleep(0.01)  # the others must not learn it from the end of this process
    dist.destroy_process_group()
    return {"first": first, "later": later, "alive": alive}


def main(folder: Path, rank: int, size: int, timeout_seconds: float, happenings: list[str]) -> None:
    """One run after the other; a victim that dies leaves no result."""
    results = {each: weather(folder / each, rank, size, each, timeout_seconds) for each in happenings}
    ranks.write_result(folder, rank, results)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5:])
