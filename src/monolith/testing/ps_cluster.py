"""Parameter servers as processes of this machine, for tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monolith.closing import Closing
from monolith.errors import UnavailableError
from monolith.ps.client import PsCluster

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_END_SECONDS = 30.0
_PROGRAM = Path(__file__).with_name("ps_process.py")
"""Run by its path and with -P: as a module, it would import this package, and all of training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PsClusterConfig:
    """How clients reach the servers."""

    addresses: Sequence[str]
    """Addresses in the order of their index."""
    token: str | None = field(default=None, repr=False)
    tls_ca: str | None = None
    """File with the authority of their certificate; None: no TLS."""

    def connect(self, *, timeout_seconds: float = 60.0) -> PsCluster:
        """Connects a client to the servers."""
        return PsCluster(self.addresses, token=self.token, tls_ca=self.tls_ca, timeout_seconds=timeout_seconds)


class PsProcess:
    """One server. It ends with this process, for whatever reason that ends."""

    def __init__(self, index: int, num_ps: int, options: Sequence[str] = ()) -> None:
        self.index = index
        command = [sys.executable, "-P", str(_PROGRAM), "--json"]
        command += ["--index", str(index), "--num_ps", str(num_ps), *options]
        self._process: subprocess.Popen[str] = subprocess.Popen(  # noqa: S603 - this program
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._report: dict[str, Any] | None = None

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def address(self) -> str:
        """``host:port`` of its control service; waits until it serves.

        Raises:
            UnavailableError: the process ended instead.
        """
        if self._report is None:
            assert self._process.stdout is not None  # noqa: S101 - requested above
            line = self._process.stdout.readline()
            if not line:
                raise UnavailableError(f"parameter server {self.index}: it ended with status {self._process.wait()}")
            self._report = json.loads(line)
        return str(self._report["address"])

    def pause(self) -> None:
        """Pauses the process until `resume`; its connections stay open."""
        self._process.send_signal(signal.SIGSTOP)
        # On a busy machine its threads may keep running for a while after the signal was sent.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Resumes the process."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kills the process."""
        self._process.kill()
        self.wait()

    def terminate(self) -> int:
        """Ends the process by SIGTERM; returns its exit status."""
        self._process.terminate()
        return self.wait()

    def wait(self) -> int:
        """Waits for the end of the process; returns its exit status."""
        status = self._process.wait(_END_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        return status

    def close(self) -> None:
        """Ends the process, if needed. Idempotent."""
        if self._process.poll() is None:
            self._process.kill()
        self.wait()


class PsProcesses(Closing):
    """Servers, and how clients reach them: a pair to unpack, and a context manager that ends them."""

    def __init__(
        self, num_ps: int, options: Sequence[str] = (), *, token: str | None = None, tls_ca: str | None = None
    ) -> None:
        self.servers = [PsProcess(index, num_ps, options) for index in range(num_ps)]
        try:
            addresses = [server.address for server in self.servers]
            self.config = PsClusterConfig(addresses=addresses, token=token, tls_ca=tls_ca)
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[Any]:
        return iter((self.servers, self.config))

    def close(self) -> None:
        """Ends the servers. Idempotent."""
        for server in self.servers:
            server.close()


def create_test_ps_cluster(
    num_ps: int,
    *,
    token_file: str | Path | None = None,
    tls_certificate: str | Path | None = None,
    tls_key: str | Path | None = None,
) -> PsProcesses:
    """Starts parameter servers as processes; returns a pair to unpack, and a context manager that ends them.

    >>> with create_test_ps_cluster(1) as (servers, config), config.connect() as cluster:
    ...     cluster.num_ps
    1

    Args:
        num_ps: Number of servers.
        token_file: File with a secret that clients must present.
        tls_certificate: File with their certificate, PEM, which clients trust; enables TLS.
        tls_key: File with its private key.
    """
    files = {"--token_file": token_file, "--tls_certificate": tls_certificate, "--tls_key": tls_key}
    options = [str(part) for name, value in files.items() if value is not None for part in (name, value)]
    token = None if token_file is None else Path(token_file).read_text(encoding="utf-8").strip()
    return PsProcesses(num_ps, options, token=token, tls_ca=None if tls_certificate is None else str(tls_certificate))
