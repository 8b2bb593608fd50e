"""A real ZooKeeper server, Debian's package, that tests may kill, pause and start again on the same port and data."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from ports import free_port

JAR = Path("/usr/share/java/zookeeper.jar")
SESSION_SECONDS = 1.0
"""The session time-out that test clients ask for."""

_PATIENCE_SECONDS = 240.0


def is_installed() -> bool:
    return JAR.exists() and shutil.which("java") is not None


class ZooKeeperServer:
    """One server on a free port of this machine; its data is in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._log = folder / "log"
        self._config = folder / "zoo.cfg"
        # Short ticks make sessions end soon; the admin server would want a second port.
        self._config.write_text(
            f"dataDir={folder / 'data'}\nclientPort={self.port}\nclientPortAddress=127.0.0.1\ntickTime=200\n"
            "minSessionTimeout=400\nadmin.enableServer=false\n4lw.commands.whitelist=*\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it grants sessions."""
        options = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dzookeeper.jmx.log4j.disable=true"]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        java = shutil.which("java") or "java"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [java, *options, "-cp", str(JAR), main, str(self._config)], stdout=log, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while b"Mode:" not in self._status():  # it answers "imok" before it grants sessions
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"ZooKeeper did not start:\n{self._log.read_text()[-2000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """End it at once, as a crash does; its data stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Let it hang: connections stay open and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _status(self) -> bytes:
        answer = b""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"srvr")
                while part := connection.recv(4096):
                    answer += part
        except OSError:
            return b""
        return answer
