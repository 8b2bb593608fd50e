"""Collective calls over torch.distributed: Gloo for tensors on the CPU, NCCL for those on GPUs.

Before data moves, the ranks compare what they are about to do (`lock_step`). Ranks that disagree, in call, root, type
or shape, all get the same error, naming both sides, instead of a hang or a crash inside the library; the run can
continue after it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import secrets
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from monolith import environment
from monolith.collective.library import MemoryKeyStore
from monolith.collective.lock_step import Call, LockStep
from monolith.collective.serial_executor import SerialExecutor
from monolith.collective.wire import LoneWire, TorchWire, as_bytes
from monolith.errors import FailedPreconditionError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from monolith.collective.library import KeyStore
    from monolith.collective.lock_step import Agreed


class TorchDistributed:
    """The default library. Without a launcher it is a run of one process, which opens no socket."""

    def __init__(self) -> None:
        self._lines: list[SerialExecutor] = []
        """Lines for training and for saving; empty before `init`."""
        self._owner: int | None = None
        """Id of the process that created the default process group, if this library did."""
        self._store: KeyStore = MemoryKeyStore()
        """Store of the rendezvous; in a run of one, one in memory."""

    def init(self, timeout_seconds: float) -> None:
        """Joins the existing process group, else the one of the launcher, else runs as one process."""
        if self._lines:
            return
        if not dist.is_available():
            raise UnavailableError("collective: this torch was built without torch.distributed; install another build")
        if not dist.is_initialized():
            self._meet(timeout_seconds)
        elif dist.get_world_size() > 1:
            self._store = distributed_c10d._get_default_store()  # noqa: SLF001 - of a group that other code has created
        if dist.is_initialized() and dist.get_world_size() > 1:
            # Groups of their own: calls of the program on its group cannot interleave, nor saving with training.
            limit = timedelta(seconds=timeout_seconds)
            self._lines = [SerialExecutor(name, TorchWire(_new_group(limit))) for name in ("training", "saving")]
        else:
            self._lines = [SerialExecutor(name, LoneWire()) for name in ("training", "saving")]
        self._step = LockStep(self._lines[0])

    def shutdown(self) -> None:
        """Leaves the run; a process group that existed before `init` stays."""
        for line in self._lines:
            line.close()
        if self._owner == os.getpid() and dist.is_initialized():
            dist.destroy_process_group()
        self._lines, self._owner, self._store = [], None, MemoryKeyStore()

    def training_line(self) -> SerialExecutor:
        """Returns the line of all calls of training, including those of this class."""
        self._require_init()
        return self._lines[0]

    def saving_line(self) -> SerialExecutor:
        """Returns a second line, for background work."""
        self._require_init()
        return self._lines[1]

    def key_store(self) -> KeyStore:
        """Returns the store of the rendezvous; in a run of one, one in memory."""
        self._require_init()
        return self._store

    def rank(self) -> int:
        """Returns the number of this process, from 0."""
        return self.training_line().wire.rank

    def size(self) -> int:
        """Returns the number of processes."""
        return self.training_line().wire.size

    def allgather(self, tensor: Tensor) -> Tensor:
        """Returns the rows of all ranks, in the order of the ranks; their number may differ."""
        self._require_init()
        if tensor.ndim == 0:
            raise ValueError("allgather: tensor must have rows, got one of shape []; use tensor.reshape(1)")
        rows = tensor.detach().contiguous()
        if self.size() == 1:
            return rows.clone()
        call = _call("allgather of rows", rows.dtype, rows.shape[1:], rows.device.type)
        sizes = torch.full((self.size(), 1), len(rows), dtype=torch.int64)
        return self._step.run(call, sizes=sizes, work=lambda agreed: self._gathered(rows, agreed))

    def broadcast(self, tensor: Tensor, root_rank: int) -> Tensor:
        """Returns the tensor of the root, as a new one; types and shapes are the same everywhere."""
        self._require_root("broadcast", root_rank)
        result = tensor.detach().clone(memory_format=torch.contiguous_format)
        if self.size() > 1:
            call = _call(f"broadcast from {root_rank} of", result.dtype, result.shape, result.device.type)
            self._step.run(call, work=lambda _: self._step.line.wire.broadcast(result, root_rank))
        return result

    def broadcast_parameters(self, tensors: Mapping[str, Tensor], root_rank: int) -> None:
        """Overwrites these tensors with those of the root; names, types and shapes are the same everywhere."""
        self._require_root("broadcast_parameters", root_rank)
        if self.size() == 1:
            return
        ordered = sorted(tensors.items())
        described = "\n".join(f"{name} {_described(tensor, tensor.shape)}" for name, tensor in ordered)
        digest = hashlib.sha256(described.encode()).hexdigest()[:16]
        call = Call("broadcast_parameters", f"from {root_rank} of {len(ordered)} tensors with digest {digest}")

        def overwrite(_: Agreed) -> None:
            for tensor in dict(ordered).values():
                target = tensor.detach()
                sent = target.contiguous()
                self._step.line.wire.broadcast(sent, root_rank)
                if not target.is_contiguous():
                    target.copy_(sent)

        self._step.run(call, work=overwrite)

    def allreduce(self, tensor: Tensor) -> Tensor:
        """Returns the sum of all ranks' tensors, as a new one; types and shapes are the same everywhere."""
        self._require_init()
        result = tensor.detach().clone(memory_format=torch.contiguous_format)
        if self.size() > 1:
            call = _call("allreduce of", result.dtype, result.shape, result.device.type)
            self._step.run(call, work=lambda _: self._step.line.wire.add(result))
        return result

    def alltoall(self, tensor: Tensor, sizes: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Returns the rows that each rank has for this one, in the order of the ranks, and their numbers."""
        wire = self.training_line().wire
        rows = tensor.detach().contiguous()
        if wire.size == 1:
            return rows.clone(), list(sizes)
        row_shape = rows.shape[1:]
        call = _call("alltoall of rows", rows.dtype, row_shape, rows.device.type)

        def exchange(agreed: Agreed) -> tuple[Tensor, list[int]]:
            received_sizes: list[int] = agreed.sizes.view(-1).tolist()
            received = rows.new_empty((sum(received_sizes), *row_shape))
            wire.exchange(received, rows, received_sizes, sizes)
            return received, received_sizes

        return self._step.run(call, sizes=torch.tensor(sizes, dtype=torch.int64).view(-1, 1), work=exchange)

    def barrier(self) -> None:
        """Returns when all ranks have called it."""
        self._require_init()
        if self.size() > 1:
            self._step.run(Call("barrier"), work=lambda _: None)  # the ranks cannot agree before all have called

    def _meet(self, timeout_seconds: float) -> None:
        launch = read_launch()
        if launch is None:
            return
        try:
            store = meeting_store(launch, timeout_seconds)
            dist.init_process_group(
                _backends(),
                store=store,
                rank=launch.rank,
                world_size=launch.size,
                timeout=timedelta(seconds=timeout_seconds),
            )
        except (RuntimeError, OSError) as error:
            raise UnavailableError(
                f"collective: rank {launch.rank} of {launch.size} could not meet the others at {launch.master} "
                f"within {timeout_seconds:g} s: {error}"
            ) from error
        self._owner, self._store = os.getpid(), store

    def _gathered(self, rows: Tensor, agreed: Agreed) -> Tensor:
        """Gathers the rows of all ranks; shorter ones are padded for the exchange, as the library requires."""
        lengths: list[int] = agreed.sizes[:, 0].tolist()
        row_bytes = rows.element_size() * math.prod(rows.shape[1:])
        sent = torch.zeros(max(lengths) * row_bytes, dtype=torch.uint8, device=rows.device)
        sent[: len(rows) * row_bytes] = as_bytes(rows)
        received = self._step.line.wire.gather(sent)
        joined = torch.cat([part[: count * row_bytes] for part, count in zip(received, lengths, strict=True)])
        return joined.view(rows.dtype).reshape(sum(lengths), *rows.shape[1:])

    def _require_init(self) -> None:
        if not self._lines:
            raise FailedPreconditionError("collective: not initialised; call monolith.collective.init() first")

    def _require_root(self, call: str, root_rank: int) -> None:
        if not 0 <= root_rank < self.size():
            raise ValueError(f"{call}: root_rank must be in [0, {self.size()}), got {root_rank}")


def _new_group(limit: timedelta) -> dist.ProcessGroup:
    group = dist.new_group(backend=_backends(), timeout=limit)
    if not isinstance(group, dist.ProcessGroup):
        raise UnavailableError("collective: torch.distributed made no group of all ranks")
    return group


def _backends() -> str:
    """Returns the backends: NCCL for GPU tensors only if every process of this machine has a GPU of its own."""
    if not (torch.cuda.is_available() and dist.is_nccl_available()):
        return "gloo"
    processes = environment.first_of("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE") or "1"
    shares = processes.isdigit() and int(processes) > torch.cuda.device_count()
    return "gloo" if shares else "cpu:gloo,cuda:nccl"


@functools.lru_cache(maxsize=256)
def _call(what: str, dtype: torch.dtype, shape: torch.Size, device: str) -> Call:
    """Returns the call that the ranks agree on. Cached, since most calls repeat."""
    kind, _, subject = what.partition(" ")
    return Call(kind, f"{subject} {str(dtype).removeprefix('torch.')} {list(shape)} on {device}")


def _described(tensor: Tensor, shape: torch.Size) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(shape)} on {tensor.device.type}"


# torchrun keeps one store for all its restarts: an address in it may belong to a dead rank. So every start draws a mark
# of its own, and prefixes all its keys with the mark.

_POLL_SECONDS = 0.01


def meeting_store(launch: Launch, timeout_seconds: float) -> Any:
    """Returns a store of torch.distributed that only the ranks of this start share.

    Raises:
        RuntimeError: not all ranks joined in time.
        OSError: not all ranks joined in time.
    """
    timeout = timedelta(seconds=timeout_seconds)
    store, _, _ = next(rendezvous("env://", launch.rank, launch.size, timeout=timeout))
    store.set_timeout(timeout)
    mark = meet(store, launch.rank, launch.size, timeout_seconds=timeout_seconds)
    return PrefixStore(f"monolith/{mark}", store)


def meet(store: KeyStore, rank: int, size: int, *, timeout_seconds: float) -> str:
    """Returns the mark of this start, the same on all of its ranks and on no others.

    Rank 0 draws it. The other ranks write a random name under it, and accept the mark when rank 0 has acknowledged that
    name: the rank 0 of an earlier start has ended, so it never acknowledges a new name.

    Args:
        store: Store of the launcher.
        rank: Rank of this process.
        size: Number of ranks.
        timeout_seconds: How long ranks wait for each other.

    Raises:
        RuntimeError: not all ranks joined in time.
        TimeoutError: not all ranks joined in time.
    """
    if rank == 0:
        return _call_others(store, size, timeout_seconds)
    name, greeted = secrets.token_hex(8), ""
    end = time.monotonic() + timeout_seconds
    while time.monotonic() < end:
        if store.check(["monolith/start"]):
            mark = str(store.get("monolith/start").decode())
            if mark != greeted:
                store.set(f"monolith/start/{mark}/{rank}", name)
                greeted = mark
            answer = f"monolith/start/{mark}/all"
            if store.check([answer]) and json.loads(store.get(answer)).get(str(rank)) == name:
                return mark
        time.sleep(_POLL_SECONDS)
    raise TimeoutError(f"rank 0 did not answer within {timeout_seconds:g} s")


def _call_others(store: KeyStore, size: int, timeout_seconds: float) -> str:
    mark = secrets.token_hex(8)
    store.set("monolith/start", mark)
    keys = {str(rank): f"monolith/start/{mark}/{rank}" for rank in range(1, size)}
    if keys:
        store.wait(list(keys.values()), timedelta(seconds=timeout_seconds))
    names = {rank: store.get(key).decode() for rank, key in keys.items()}
    store.set(f"monolith/start/{mark}/all", json.dumps(names))
    return mark


@dataclass(frozen=True, slots=True)
class Launch:
    """This process in a run of several."""

    rank: int
    size: int
    master: str
    """Address and port where the ranks meet."""


def read_launch() -> Launch | None:
    """Reads the launcher's variables; None without a launcher, or where it started one process without a meeting point.

    Raises:
        ValueError: A variable is missing or is not a number.
    """
    rank = environment.first_of("RANK", "OMPI_COMM_WORLD_RANK")
    size = environment.first_of("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")
    address, port = environment.first_of("MASTER_ADDR"), environment.first_of("MASTER_PORT")
    if size is None and rank is None:
        return None
    if size == "1" and not (address and port):
        return None
    values = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": address, "MASTER_PORT": port}
    missing = [name for name, value in values.items() if value is None]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise ValueError(
            f"collective: a launcher started this process, but {', '.join(missing)} {are} not set; start it "
            "with torchrun, or set them"
        )
    launch = Launch(_number("RANK", rank), _number("WORLD_SIZE", size), f"{address}:{port}")
    if not 0 <= launch.rank < launch.size:
        raise ValueError(f"collective: RANK must be in [0, {launch.size}) of WORLD_SIZE, got {launch.rank}")
    return launch


def _number(name: str, text: str | None) -> int:
    try:
        return int(text or "")
    except ValueError as error:
        raise ValueError(f"collective: {name} must be an integer, got {text!r}") from error
