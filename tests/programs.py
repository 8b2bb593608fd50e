"""Runs Python programs as forks of a process that has imported what they import."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from forked_starts import ForkingProcess, receive

_TESTS = Path(__file__).resolve().parent
_ROOT = _TESTS.parent


class Programs:
    """Runs programs, which find `benchmarks`, to their end; so are those forks that a program starts."""

    def __init__(self, forking: ForkingProcess) -> None:
        self._forking = forking

    def run(
        self, program: Path, *arguments: str, folder: Path, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """As ``python PROGRAM ARGUMENTS`` does, in a folder; what it has printed, and how it ended."""
        given = {**os.environ, **(variables or {})}  # noqa: TID251 - a child's is its parent's
        given["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *filter(None, [given.get("PYTHONPATH")])])
        with self._forking.forked_starts(depth=2):
            return subprocess.run(
                [sys.executable, str(program), *arguments],
                cwd=folder,
                env=given,
                capture_output=True,
                text=True,
                check=False,
            )

    @contextlib.contextmanager
    def shell_commands(self, folder: Path, **commands: Sequence[str]) -> Iterator[dict[str, str]]:
        """Lets a shell run forks by name until the context ends.

        Args:
            folder: Where the commands are written.
            commands: Name -> first arguments of ``python``; those that the shell has given follow.

        Yields:
            The environment of the shell.
        """
        with contextlib.ExitStack() as stack:
            place = stack.enter_context(tempfile.TemporaryDirectory(prefix="shell-", dir="/tmp"))  # names are short
            listening = stack.enter_context(socket.socket(socket.AF_UNIX))
            listening.bind(f"{place}/socket")
            listening.listen()
            folder.mkdir(exist_ok=True)
            ours = [sys.executable, "-I", "-S", str(_TESTS / "shell_command.py"), f"{place}/socket"]
            for name, first in commands.items():
                program = folder / name
                program.write_text(f'#!/bin/sh\nexec {shlex.join([*ours, *first])} "$@"\n', encoding="utf-8")
                program.chmod(0o755)
            stack.enter_context(self._forking.forked_starts(depth=1))
            accepting = threading.Thread(target=_accept, args=(listening,))
            accepting.start()
            stack.callback(accepting.join)
            stack.callback(listening.shutdown, socket.SHUT_RDWR)
            yield {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}  # noqa: TID251 - a child's


def _accept(listening: socket.socket) -> None:
    """Starts a fork for each command, until it listens no more; returns when all have ended."""
    running = []
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listening.accept()
            running.append(threading.Thread(target=_run, args=(connection,)))
            running[-1].start()
    for each in running:
        each.join()


def _run(connection: socket.socket) -> None:
    """Runs the fork of a command; it gets the signals of the command, and dies with it."""
    with connection:
        order, descriptors = receive(connection)
        process = subprocess.Popen(
            [sys.executable, *order["arguments"]],
            cwd=order["folder"],
            env=order["variables"],
            stdin=descriptors[0],
            stdout=descriptors[1],
            stderr=descriptors[2],
        )
        ended = os.pidfd_open(process.pid)
        for each in descriptors:
            os.close(each)
        while ended not in select.select([ended, connection.fileno()], [], [])[0]:
            for number in connection.recv(16) or [signal.SIGKILL]:
                process.send_signal(number)
        os.close(ended)
        status = process.wait()
        with contextlib.suppress(OSError):
            connection.sendall(str(status).encode())
