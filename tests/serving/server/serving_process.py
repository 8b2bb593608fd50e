"""``monolith serve`` in this process: the command in the main thread, what asks it in another one."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from monolith import cli

PATIENCE_SECONDS = 120.0


class _Told(io.StringIO):
    """Standard output that says when a line is there."""

    def __init__(self) -> None:
        super().__init__()
        self.is_told = threading.Event()

    def flush(self) -> None:
        super().flush()
        if self.getvalue():
            self.is_told.set()


def serve_while(arguments: list[str], ask: Callable[[dict[str, Any]], None]) -> int:
    """The exit status of the command, which is ended once `ask` was called with where it listens."""
    told = _Told()
    problems: list[BaseException] = []

    def ask_and_end() -> None:
        try:
            assert told.is_told.wait(PATIENCE_SECONDS), "it did not begin to listen"
            ask(json.loads(told.getvalue()))
        except BaseException as error:  # noqa: BLE001 - raised again below, in the thread of the test
            problems.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=ask_and_end)
    earlier = signal.signal(signal.SIGTERM, lambda *_: None)  # until the command has its own
    try:
        thread.start()
        with contextlib.redirect_stdout(told):
            status = cli.main([*arguments, "--json"])
        told.is_told.set()
        thread.join()
    finally:
        signal.signal(signal.SIGTERM, earlier)
    if problems and told.getvalue():
        raise problems[0]
    return status
