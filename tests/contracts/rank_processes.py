"""Stores whose rows are divided among this process and others: this one is rank 0, the others follow what it does.

Run as a program, this is one of the others.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from monolith import environment
from monolith.collective import Call, LockStep, SerialExecutor
from monolith.collective.lock_step import Agreed
from monolith.collective.sharded.store import ShardedStore
from monolith.collective.wire import as_bytes, exchanging
from monolith.errors import UnavailableError
from monolith.tables import BatchStamp, Segment, TableConfig

LIMIT = timedelta(hours=6)
"""Of an exchange: ranks that tests share may have nothing to do for most of a run. Hangs end by the limit of a test."""
_NOBODY = BatchStamp(worker=0, seq=0)


class GlooWire:
    """`monolith.collective.wire.Wire` over a group that torch.distributed does not know: tests have several at once."""

    def __init__(self, meeting: Path, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        gloo: Any = dist.ProcessGroupGloo  # its stub lacks half of it
        options = gloo._Options()
        options._devices = [gloo.create_device(interface="lo")]
        options._timeout = LIMIT
        self._group: Any = gloo(torch._C._distributed_c10d.FileStore(str(meeting), size), rank, size, options)

    @exchanging
    def exchange(
        self, received: torch.Tensor, sent: torch.Tensor, received_sizes: Sequence[int], sent_sizes: Sequence[int]
    ) -> None:
        row = received.element_size() * math.prod(received.shape[1:])
        of_received, of_sent = ([row * size for size in sizes] for sizes in (received_sizes, sent_sizes))
        options = dist.AllToAllOptions()
        self._group.alltoall_base(as_bytes(received), as_bytes(sent), of_received, of_sent, options).wait()

    @exchanging
    def exchange_evenly(self, received: torch.Tensor, sent: torch.Tensor) -> None:
        self._group.alltoall_base(received, sent, [], [], dist.AllToAllOptions()).wait()

    @exchanging
    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        if tensor.numel():
            self._group.allgather([[as_bytes(part) for part in parts]], [as_bytes(tensor)]).wait()
        return parts

    @exchanging
    def broadcast(self, tensor: torch.Tensor, root_rank: int) -> None:
        if tensor.numel():
            self._group.broadcast(as_bytes(tensor), root_rank).wait()

    @exchanging
    def add(self, tensor: torch.Tensor) -> None:
        self._group.allreduce(tensor).wait()

    def close(self) -> None:
        del self._group


def lines_of(folder: Path, rank: int, size: int) -> tuple[SerialExecutor, SerialExecutor]:
    """For training and for saving."""
    training, saving = (SerialExecutor(name, GlooWire(folder / name, rank, size)) for name in ("training", "saving"))
    return training, saving


class Ranks:
    """Rank 0 of some processes."""

    def __init__(self, folder: Path, size: int) -> None:
        self.training, self.saving = lines_of(folder, 0, size)
        self.step = LockStep(self.training)

    def tell(self, kind: str, text: str = "") -> None:
        self.step.run(Call(kind, arguments=text.encode()), work=lambda _: None)

    def close(self) -> None:
        self.tell("end")
        LockStep(self.saving).run(Call("end"), work=lambda _: None)
        for line in (self.training, self.saving):
            line.close()


class RankedStore(ShardedStore):
    """A store of its own at ranks that are there already, which forget it when it is closed."""

    _numbers = itertools.count()

    def __init__(self, configs: Mapping[str, TableConfig], *, ranks: Ranks) -> None:
        self._ranks, self._is_dropped = ranks, True
        name = f"rows {next(self._numbers)}"
        ranks.tell("make store", json.dumps([name, {table: config.to_dict() for table, config in configs.items()}]))
        super().__init__(configs, name=name, training=ranks.training, saving=ranks.saving)
        self._is_dropped = False

    def close(self) -> None:
        super().close()
        if not self._is_dropped:
            self._is_dropped = True
            self._ranks.tell("drop store", self.name)


@contextmanager
def rank_processes(size: int) -> Iterator[Callable[[Mapping[str, TableConfig]], RankedStore]]:
    """Makes stores at so many ranks."""
    with ExitStack() as ended:
        folder = Path(ended.enter_context(tempfile.TemporaryDirectory(prefix="monolith-ranks-")))
        variables = {**environment.starting_with(""), "OMP_NUM_THREADS": "1"}
        variables["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        for rank in range(1, size):
            command = [sys.executable, str(Path(__file__).resolve()), str(folder), str(rank), str(size)]
            ended.callback(_end, subprocess.Popen(command, env=variables))
        ranks = Ranks(folder, size)
        ended.callback(ranks.close)
        # What a line has for good, such as its thread, is there before the first test looks.
        first = RankedStore({"first": TableConfig([Segment(1)])}, ranks=ranks)
        first.read(first.plan(torch.tensor([1]), torch.tensor([0, 1]), stamp=_NOBODY), step=0).result()
        first.close()
        yield lambda configs: RankedStore(configs, ranks=ranks)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# The other ranks


class Follower:
    """One of the other ranks."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        self._lines = lines_of(folder, rank, size)
        self._stores: dict[str, ShardedStore] = {}
        self._has_ended = False
        self._wanted: str | None = None
        self._handlers: dict[str, Callable[[Agreed, bytes], object]] = {}
        self._saving: dict[str, Callable[[Agreed, bytes], object]] = {"end": self._end}

    def serve(self) -> None:
        beside = threading.Thread(target=self._serve_saving, daemon=True)
        beside.start()
        self._refresh()
        step = LockStep(self._lines[0])
        while not self._has_ended:
            try:
                step.follow(self._handlers).result()
            except UnavailableError as error:
                sys.exit(f"rank {step.line.wire.rank}: {error}")
            except Exception:  # noqa: BLE001, S112 - rank 0 was told the same
                continue
            if self._wanted is not None:
                self._make(self._wanted)
        beside.join(30)

    def _serve_saving(self) -> None:
        step = LockStep(self._lines[1])
        kind: str | None = ""
        while kind != "end":
            try:
                kind = step.follow(self._saving).result()
            except UnavailableError:
                return
            except Exception:  # noqa: BLE001, S112 - rank 0 was told the same
                continue

    def _refresh(self) -> None:
        self._handlers.clear()
        self._handlers.update({"make store": self._want, "drop store": self._drop, "end": self._end})
        for store in self._stores.values():
            self._handlers.update(store.followers())

    def _want(self, _: Agreed, arguments: bytes) -> None:
        self._wanted = arguments.decode()

    def _make(self, text: str) -> None:
        self._wanted = None
        name, configs = json.loads(text)
        tables = {table: TableConfig.from_dict(config) for table, config in configs.items()}
        with suppress(Exception):  # rank 0 was told the same
            store = ShardedStore(tables, name=name, training=self._lines[0], saving=self._lines[1])
            self._saving.update(store.saving_followers())
            self._stores[name] = store
            self._refresh()

    def _drop(self, _: Agreed, arguments: bytes) -> None:
        store = self._stores.pop(arguments.decode())
        for kind in store.saving_followers():
            self._saving.pop(kind)
        store.close()
        self._refresh()

    def _end(self, _: Agreed, __: bytes) -> None:
        self._has_ended = True


if __name__ == "__main__":
    torch.set_num_threads(1)
    Follower(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])).serve()
    os._exit(0)
