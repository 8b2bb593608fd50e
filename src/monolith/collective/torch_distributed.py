"""Collective calls over torch.distributed: Gloo for tensors on the CPU, NCCL for those on GPUs.

Before data moves, the ranks compare what they are about to do. Ranks that disagree, in call, root, type or shape, all
get the same error, naming both sides, instead of a hang or a crash inside the library; the run can go on after it.
"""

from __future__ import annotations

import hashlib
import json
import math
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from monolith.collective._launcher import read_launch
from monolith.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

_CALL_BYTES = 256
"""Longest text by which a rank tells the others what it is about to do; the message has room for its escapes."""


class TorchDistributed:
    """The default library. Without a launcher it is a run of one process, which opens no socket."""

    def __init__(self) -> None:
        self._rank = 0
        self._size = 0
        """0 before `init`."""
        self._owns_group = False
        self._plan_device = torch.device("cpu")
        """Where the ranks compare their calls: the CPU, unless the group that was there speaks NCCL only."""

    def init(self, timeout_seconds: float) -> None:
        """Joins the process group that exists, else the one of the launcher, else stays alone."""
        if self._size:
            return
        if not dist.is_available():
            raise UnavailableError("collective: this torch was built without torch.distributed; install another build")
        if not dist.is_initialized():
            launch = read_launch()
            if launch is None:
                self._rank, self._size = 0, 1
                return
            try:
                dist.init_process_group(
                    _backends(),
                    init_method="env://",
                    rank=launch.rank,
                    world_size=launch.size,
                    timeout=timedelta(seconds=timeout_seconds),
                )
            except (RuntimeError, OSError) as error:
                raise UnavailableError(
                    f"collective: rank {launch.rank} of {launch.size} could not meet the others at {launch.master} "
                    f"within {timeout_seconds:g} s: {error}"
                ) from error
            self._owns_group = True
        elif dist.get_backend() == dist.Backend.NCCL:
            self._plan_device = torch.device("cuda")
        self._rank, self._size = dist.get_rank(), dist.get_world_size()

    def shutdown(self) -> None:
        """Leaves the run; a process group that was there before `init` stays."""
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()
        self._rank, self._size, self._owns_group = 0, 0, False

    def rank(self) -> int:
        """Number of this process, from 0."""
        self._require_init()
        return self._rank

    def size(self) -> int:
        """Number of processes."""
        self._require_init()
        return self._size

    def allgather(self, tensor: Tensor) -> Tensor:
        """The rows of all ranks, in the order of the ranks; their number may differ."""
        self._require_init()
        if tensor.ndim == 0:
            raise ValueError("allgather: tensor must have rows, got one of shape []; use tensor.reshape(1)")
        rows = tensor.detach().contiguous()
        if self._size == 1:
            return rows.clone()
        lengths = self._agree(f"allgather of rows {_described(rows, rows.shape[1:])}", count=len(rows))
        row_bytes = rows.element_size() * math.prod(rows.shape[1:])
        sent = torch.zeros(max(lengths) * row_bytes, dtype=torch.uint8, device=rows.device)
        sent[: len(rows) * row_bytes] = _bytes(rows)
        received = [torch.empty_like(sent) for _ in lengths]
        if len(sent):
            dist.all_gather(received, sent)
        joined = torch.cat([part[: count * row_bytes] for part, count in zip(received, lengths, strict=True)])
        return joined.view(rows.dtype).reshape(sum(lengths), *rows.shape[1:])

    def broadcast(self, tensor: Tensor, root_rank: int) -> Tensor:
        """The tensor of the root, as a new one; types and shapes are the same everywhere."""
        self._require_init()
        self._require_root("broadcast", root_rank)
        result = tensor.detach().clone(memory_format=torch.contiguous_format)
        if self._size > 1:
            self._agree(f"broadcast from {root_rank} of {_described(result, result.shape)}")
            self._broadcast_bytes(result, root_rank)
        return result

    def broadcast_parameters(self, tensors: Mapping[str, Tensor], root_rank: int) -> None:
        """Overwrites these tensors with those of the root; names, types and shapes are the same everywhere."""
        self._require_init()
        self._require_root("broadcast_parameters", root_rank)
        if self._size == 1:
            return
        ordered = sorted(tensors.items())
        described = "\n".join(f"{name} {_described(tensor, tensor.shape)}" for name, tensor in ordered)
        digest = hashlib.sha256(described.encode()).hexdigest()[:16]
        self._agree(f"broadcast_parameters from {root_rank} of {len(ordered)} tensors with digest {digest}")
        for _, tensor in ordered:
            target = tensor.detach()
            sent = target.contiguous()
            self._broadcast_bytes(sent, root_rank)
            if not target.is_contiguous():
                target.copy_(sent)

    def _broadcast_bytes(self, tensor: Tensor, root_rank: int) -> None:
        if tensor.numel():
            dist.broadcast(_bytes(tensor), src=root_rank)

    def _agree(self, call: str, *, count: int = 0) -> list[int]:
        """The counts of all ranks, once they have found that they make the same call."""
        text = json.dumps([count, call[:_CALL_BYTES]]).encode().ljust(2 * _CALL_BYTES)
        mine = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(self._plan_device)
        received = [torch.empty_like(mine) for _ in range(self._size)]
        dist.all_gather(received, mine)
        plans = [json.loads(bytes(part.cpu().numpy())) for part in received]
        calls = [str(plan[1]) for plan in plans]
        other = next((rank for rank, call in enumerate(calls) if call != calls[0]), None)
        if other is not None:
            raise InvalidArgumentError(
                f"collective: all ranks must make the same call, but rank 0 makes {calls[0]!r} and rank {other} makes "
                f"{calls[other]!r}"
            )
        return [int(plan[0]) for plan in plans]

    def _require_init(self) -> None:
        if not self._size:
            raise FailedPreconditionError("collective: not initialised; call monolith.collective.init() first")

    def _require_root(self, call: str, root_rank: int) -> None:
        if not 0 <= root_rank < self._size:
            raise ValueError(f"{call}: root_rank must be in [0, {self._size}), got {root_rank}")


def _backends() -> str:
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"


def _described(tensor: Tensor, shape: torch.Size) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(shape)} on {tensor.device.type}"


def _bytes(tensor: Tensor) -> Tensor:
    """The memory of a contiguous tensor: no backend has to know its type."""
    return tensor.reshape(-1).view(torch.uint8)
