"""A program that forks a process as a launcher does, for tests of what the fork has and does not have.

    python forking_program.py facts|exit|raise|die|outlive|work

Prints what the fork said, then its exit code; with "outlive" only the number of the fork, and both stay.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from monolith import environment
from monolith.launch.process import ForkedProcess

if TYPE_CHECKING:
    from collections.abc import Sequence


def facts(arguments: Sequence[str]) -> int:
    descriptors = {int(path.name): path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    found = {
        "arguments": list(arguments),
        "argv": sys.argv,
        "command_line": Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").decode().split("\0"),
        "is_leader": os.getpgid(0) == os.getpid(),
        "variable": environment.get("OF_THE_JOB"),
        "descriptors": sorted(number for number, path in descriptors.items() if "proc" not in str(path)),
        "kept": int(arguments[-1]),
        "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "terminate": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        "hang_up": signal.getsignal(signal.SIGHUP) is signal.SIG_IGN,
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "wakeup": signal.set_wakeup_fd(-1),
        "input": sys.stdin.read(),
    }
    sys.stdout.write(f"{json.dumps(found)}\n")
    return 7


def leave(_: Sequence[str]) -> NoReturn:
    sys.exit(3)


def fail(_: Sequence[str]) -> NoReturn:
    raise KeyError("of the body")


def die(_: Sequence[str]) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def stay(_: Sequence[str]) -> int:
    time.sleep(1000)
    return 0


def work(_: Sequence[str]) -> int:
    """Ends as an interpreter does: threads first, then what was to be done at the end."""
    atexit.register(sys.stdout.write, "at the end\n")
    may_end = threading.Event()
    threading.Thread(target=lambda: (may_end.wait(), sys.stdout.write("thread\n"))).start()
    may_end.set()
    return 0


BODIES = {"facts": facts, "exit": leave, "raise": fail, "die": die, "outlive": stay, "work": work}

if __name__ == "__main__":
    reading, writing = os.pipe()
    kept = os.dup(writing)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    other, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup)
    sys.stdout.write("said before the fork\n")
    process = ForkedProcess(
        BODIES[sys.argv[1]], ["worker", "a:B", "--more", str(kept)], output=writing, kept=kept,
        variables={"OF_THE_JOB": "yes"},
    )  # fmt: skip
    os.close(writing)
    os.close(kept)
    if sys.argv[1] == "outlive":
        sys.stdout.write(f"{process.pid}\n")
        sys.stdout.flush()
        time.sleep(1000)
    with os.fdopen(reading) as file:
        sys.stdout.write(file.read())
    sys.stdout.write(f"{process.wait()}\n")
