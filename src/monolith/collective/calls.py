"""The calls of a synchronous run, over the library that the environment asks for.

``MONOLITH_WITH_BYTEPS`` set to another number than 0 chooses BytePS, else ``MONOLITH_WITH_HOROVOD`` set to anything but
0 Horovod, else torch.distributed does the work. The variables are read at the first call and choose the library,
nothing else: whether training is synchronous is a matter of its config.

All ranks make the same calls in the same order, from one thread at a time.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from monolith import environment
from monolith.collective.foreign_libraries import BytePs, Horovod
from monolith.collective.torch_distributed import TorchDistributed
from monolith.nn.row_state import is_of_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from monolith.collective.library import CollectiveLibrary
    from monolith.collective.line import Line

_lock = threading.Lock()
_library: CollectiveLibrary | None = None
"""The library in use; guarded by the lock."""


def init(*, timeout_seconds: float = 1800.0) -> None:
    """Joins the run that the launcher started, or a run of one process; a second call does nothing.

    Args:
        timeout_seconds: How long the ranks may keep each other waiting, here and in every later call.

    Raises:
        ImportError: The library that a variable asks for is not installed; says which and what to do.
        ValueError: The launcher's variables contradict each other.
        UnavailableError: The other ranks did not come.
    """
    if not timeout_seconds > 0:
        raise ValueError(f"collective: timeout_seconds must be > 0, got {timeout_seconds!r}")
    library().init(timeout_seconds)


def shutdown() -> None:
    """Leaves the run and forgets the library; without `init` does nothing."""
    global _library
    with _lock:
        chosen, _library = _library, None
    if chosen is not None:
        chosen.shutdown()


def rank() -> int:
    """Number of this process, from 0."""
    return library().rank()


def size() -> int:
    """Number of processes of the run."""
    return library().size()


def allgather(tensor: Tensor) -> Tensor:
    """The rows of all ranks, in the order of the ranks; ranks may have different numbers of rows.

    Args:
        tensor: ``[n, ...]``, same type and same dims after the first on every rank; n may be 0.
    """
    return library().allgather(tensor)


def broadcast(tensor: Tensor, root_rank: int = 0) -> Tensor:
    """The tensor of one rank, as a new tensor on every rank.

    Args:
        tensor: Same type and shape on every rank; not changed.
        root_rank: Whose tensor it is.
    """
    return library().broadcast(tensor, root_rank)


def broadcast_parameters(tensors: Mapping[str, Tensor], root_rank: int = 0) -> None:
    """Overwrites tensors with those of one rank, in place: ``broadcast_parameters(model.state_dict())``.

    Args:
        tensors: Same names, types and shapes on every rank. What a state dictionary says about the rows of embeddings
            is passed over: every rank has rows of its own.
        root_rank: Whose tensors they become.
    """
    weights = {name: tensor for name, tensor in tensors.items() if not is_of_rows(name)}
    library().broadcast_parameters(weights, root_rank)


def training_line() -> Line:
    """The line that all calls of training go through, those of this module included."""
    return library().training_line()


def saving_line() -> Line:
    """A second line, with connections of its own, for what happens beside training, such as saving."""
    return library().saving_line()


def library() -> CollectiveLibrary:
    """The library of this process, chosen now if it was not before."""
    global _library  # noqa: PLW0603 - one run per process
    with _lock:
        if _library is None:
            _library = _choose()
        return _library


def _choose() -> CollectiveLibrary:
    byteps = environment.get(BytePs.variable) or "0"
    try:
        wants_byteps = int(byteps) != 0
    except ValueError as error:
        raise ValueError(f"collective: {BytePs.variable} must be a whole number, got {byteps!r}") from error
    if wants_byteps:
        return BytePs()
    if (environment.get(Horovod.variable) or "0") != "0":
        return Horovod()
    return TorchDistributed()
