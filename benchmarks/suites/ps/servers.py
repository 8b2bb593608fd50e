"""Parameter servers as processes of this machine, and stores on them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import IO, TYPE_CHECKING, cast

from monolith.cli._bench.measurement import RowSkippedError
from monolith.ps import PsStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from monolith.tables import TableConfig


_END_SECONDS = 30.0


class Servers:
    """Running servers.

    Args:
        addresses: Addresses in the order of their index.
        pids: Ids of their processes.
    """

    def __init__(self, addresses: Sequence[str], pids: Sequence[int]) -> None:
        self.addresses = addresses
        self.pids = pids

    @contextmanager
    def open_store(self, configs: Mapping[str, TableConfig]) -> Iterator[PsStore]:
        """Opens a store on all of them, closed at the end."""
        with open_store(self.addresses, configs) as store:
            yield store


@contextmanager
def running_servers(count: int, *, threads: int, options: Sequence[str] = ()) -> Iterator[Servers]:
    """Yields servers of `threads` threads each, with further options of ``monolith ps``; they end with the block.

    Raises:
        RowSkippedError: grpcio is not installed.
    """
    if importlib.util.find_spec("grpc") is None:
        raise RowSkippedError("servers are controlled over gRPC; pip install 'monolith-torch[ps]'")
    with ExitStack() as running:
        processes = [running.enter_context(_running(index, count, threads, options)) for index in range(count)]
        told = [json.loads(cast("IO[str]", process.stdout).readline()) for process in processes]
        yield Servers([each["address"] for each in told], [process.pid for process in processes])


@contextmanager
def _running(index: int, count: int, threads: int, given: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    options = ["--index", str(index), "--num_ps", str(count), "--threads", str(threads), "--drain_seconds", "0", *given]
    # The interpreter that runs us, on a command of this package.
    process = subprocess.Popen(
        [sys.executable, "-m", "monolith", "ps", "--json", *options], stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


@contextmanager
def open_store(addresses: Sequence[str], configs: Mapping[str, TableConfig]) -> Iterator[PsStore]:
    """Opens a store on the servers at these addresses, closed at the end."""
    store = PsStore(configs, servers=addresses)
    try:
        yield store
    finally:
        store.close()
