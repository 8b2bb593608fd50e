"""The calls of a synchronous run, over the library that the environment selects.

``MONOLITH_WITH_BYTEPS`` set to a number other than 0 selects BytePS, else ``MONOLITH_WITH_HOROVOD`` set to anything but
0 selects Horovod, else torch.distributed is used. The variables are read at the first call and only select the library:
the config of a training specifies whether it is synchronous.

All ranks make the same calls in the same order. Threads of a rank may call concurrently; their calls are serialized.
The program must ensure that the order is the same on all ranks.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch

from monolith import environment
from monolith.collective.foreign_libraries import BytePs, Horovod
from monolith.collective.torch_distributed import TorchDistributed
from monolith.nn.embeddings import is_of_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from monolith.collective.library import CollectiveLibrary, KeyStore
    from monolith.collective.serial_executor import SerialExecutor

_SUMMED = (
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)
"""Types that every library can add."""

_lock = threading.Lock()
_library: CollectiveLibrary | None = None
"""The library in use; guarded by the lock."""


def init(*, timeout_seconds: float = 1800.0) -> None:
    """Joins the run that the launcher started, or a run of one process. Idempotent.

    Args:
        timeout_seconds: How long ranks wait for each other, here and in every later call.

    Raises:
        ImportError: The library that a variable selects is not installed; the message names it and the remedy.
        ValueError: The launcher's variables contradict each other.
        UnavailableError: The other ranks did not join in time.
    """
    if not timeout_seconds > 0:
        raise ValueError(f"collective: timeout_seconds must be > 0, got {timeout_seconds!r}")
    library().init(timeout_seconds)


def shutdown() -> None:
    """Leaves the run and releases the library. Does nothing without `init`."""
    global _library
    with _lock:
        chosen, _library = _library, None
    if chosen is not None:
        chosen.shutdown()


def rank() -> int:
    """Returns the number of this process, from 0."""
    return library().rank()


def size() -> int:
    """Returns the number of processes of the run."""
    return library().size()


def allgather(tensor: Tensor) -> Tensor:
    """Returns the rows of all ranks, in the order of the ranks; ranks may have different numbers of rows.

    Args:
        tensor: ``[n, ...]``, same type and same dims after the first on every rank; n may be 0.
    """
    return library().allgather(tensor)


def broadcast(tensor: Tensor, root_rank: int = 0) -> Tensor:
    """Returns the tensor of one rank, as a new tensor on every rank.

    Args:
        tensor: Same type and shape on every rank; not changed.
        root_rank: Rank of the tensor.
    """
    return library().broadcast(tensor, root_rank)


def broadcast_parameters(tensors: Mapping[str, Tensor], root_rank: int = 0) -> None:
    """Overwrites tensors with those of one rank, in place: ``broadcast_parameters(model.state_dict())``.

    Args:
        tensors: Same names, types and shapes on every rank. Entries of a state dictionary about the rows of embeddings
            are skipped: every rank has rows of its own.
        root_rank: Rank whose tensors are sent.
    """
    weights = {name: tensor for name, tensor in tensors.items() if not is_of_rows(name)}
    library().broadcast_parameters(weights, root_rank)


def allreduce(tensor: Tensor, *, average: bool = False) -> Tensor:
    """Returns the sum, or the mean, of the tensors of all ranks, as a new tensor; every rank gets the same bits.

    Args:
        tensor: Same type and shape on every rank, not complex; not changed. The library chooses the order of the
            addition.
        average: Whether the sum is divided by the number of ranks; for floating point only.
    """
    if tensor.dtype not in _SUMMED:
        summed = ", ".join(_name(dtype) for dtype in _SUMMED)
        raise TypeError(f"allreduce: tensor must be of {summed}, got {_name(tensor.dtype)}; convert it first")
    if average and not tensor.is_floating_point():
        raise TypeError(f"allreduce: only floating point has a mean, got {_name(tensor.dtype)}; use average=False")
    total = library().allreduce(tensor)
    return total.div_(size()) if average else total


def alltoall(tensor: Tensor, sizes: Sequence[int] | Tensor) -> tuple[Tensor, list[int]]:
    """Sends rows to each rank; returns the rows of all ranks for this one, as a new tensor, and their number by rank.

    Rows of a rank for itself are copied, not sent.

    Args:
        tensor: ``[n, ...]``, the rows for rank 0 first; same type and same dims after the first on every rank.
        sizes: Number of rows for each rank; may differ, and may be 0.
    """
    numbers = sizes.tolist() if isinstance(sizes, torch.Tensor) else list(sizes)
    chosen = library()
    size = chosen.size()
    if tensor.ndim == 0 or len(numbers) != size or min(numbers) < 0 or sum(numbers) != tensor.shape[0]:
        raise ValueError(
            f"alltoall: sizes must be {size} numbers >= 0, one for each rank, that sum up to the number of rows of "
            f"the tensor, got {numbers} for a tensor of shape {list(tensor.shape)}"
        )
    return chosen.alltoall(tensor, numbers)


def barrier() -> None:
    """Returns when all ranks have called it."""
    library().barrier()


def training_line() -> SerialExecutor:
    """Returns the line of all calls of training, including those of this module."""
    return library().training_line()


def saving_line() -> SerialExecutor:
    """Returns a second line, with connections of its own, for background work such as saving."""
    return library().saving_line()


def key_store() -> KeyStore:
    """Returns a store by which ranks exchange small values by name. Thread-safe; independent of the order of calls.

    Raises:
        UnimplementedError: the library has none; the message names the remedy.
    """
    return library().key_store()


def library() -> CollectiveLibrary:
    """Returns the library of this process, selected at the first call."""
    global _library  # noqa: PLW0603 - one run per process
    with _lock:
        if _library is None:
            _library = _choose()
        return _library


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _choose() -> CollectiveLibrary:
    byteps = environment.get(BytePs.variable) or "0"
    try:
        wants_byteps = int(byteps) != 0
    except ValueError as error:
        raise ValueError(f"collective: {BytePs.variable} must be an integer, got {byteps!r}") from error
    if wants_byteps:
        return BytePs()
    if (environment.get(Horovod.variable) or "0") != "0":
        return Horovod()
    return TorchDistributed()
