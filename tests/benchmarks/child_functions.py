"""What a fresh process is asked to do in the tests of isolation."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from monolith.cli._bench.measurement import RowSkippedError

if TYPE_CHECKING:
    from monolith.cli._bench.setting import Setting


def echo(setting: Setting, **arguments: Any) -> dict[str, Any]:
    return {"pid": os.getpid(), "threads": setting.threads, "sizes": list(setting.memory_rows), **arguments}


def skip(setting: Setting) -> None:
    raise RowSkippedError("the peer is missing; install it")


def fail(setting: Setting) -> None:
    raise ValueError("this row is broken")


def die(setting: Setting) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt(setting: Setting) -> None:
    raise KeyboardInterrupt


def print_noise(setting: Setting) -> str:
    print("a library says hello")  # noqa: T201 - the noise is the point
    return "answer"
